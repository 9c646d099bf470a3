"""Hardware-in-the-loop acceptance of LoRA adapters on NPU boards."""

__version__ = "0.2.0"
