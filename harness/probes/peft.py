"""What an adapter_config.json says."""

from __future__ import annotations

import json
import math
import os
import re
from typing import Any
from typing import Dict
from typing import List
from typing import Tuple


__all__ = ["HARMLESS", "INERT", "READ", "VARIANTS", "Config", "ConfigError"]

FILE = "adapter_config.json"
LIMIT = 1 << 20  # bytes; a config with a pattern for every module is about 50 kB

# Fields that say nothing about what the adapter computes. `ensure_weight_tying`
# acts only on modules_to_save and embeddings, which are refused anyway.
INERT = frozenset(
    (
        "auto_mapping",
        "base_model_name_or_path",
        "ensure_weight_tying",
        "eva_config",  # an initialisation; the base stays as it is
        "inference_mode",
        "layers_pattern",
        "lora_dropout",
        "megatron_core",
        "peft_version",
        "qalora_group_size",
        "revision",
        "runtime_config",
        "task_type",
    )
)
# Fields read below.
READ = frozenset(
    (
        "alpha_pattern",
        "bias",
        "exclude_modules",
        "init_lora_weights",
        "layers_to_transform",
        "lora_alpha",
        "peft_type",
        "r",
        "rank_pattern",
        "target_modules",
        "use_rslora",
    )
)
# Fields that are known to change what the adapter computes, with their name.
VARIANTS = {
    "alora_invocation_tokens": "activated LoRA",
    "arrow_config": "Arrow routing",
    "corda_config": "CorDA (it changes the base)",
    "fan_in_fan_out": "transposed weights",
    "kasa_config": "KaSA",
    "layer_replication": "layer replication",
    "loftq_config": "LoftQ (it changes the base)",
    "lora_bias": "a bias on lora_B",
    "lora_ga_config": "LoRA-GA (it changes the base)",
    "megatron_config": "Megatron layers",
    "modules_to_save": "fully trained modules",
    "monteclora_config": "MonteCLoRA",
    "target_parameters": "parameters as targets",
    "trainable_token_indices": "trained tokens",
    "use_bdlora": "block-diagonal LoRA",
    "use_dora": "DoRA",
    "use_qalora": "QALoRA",
    "velora_config": "VeLoRA",
}
KNOWN = INERT.union(READ, VARIANTS)
# Initialisations that leave the base as it was; PiSSA, OLoRA, CorDA, LoRA-GA and
# LoftQ put a changed base under the adapter (PEFT's documentation of
# `init_lora_weights`), so such an adapter alone is wrong on the original base.
HARMLESS = (True, False, None, "gaussian", "eva", "mica", "orthogonal")


class ConfigError(Exception):
    """The configuration is damaged or asks for what slots cannot do.

    :param code: `config-missing`, `config-malformed` or `unsupported`.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


def _malformed(text: str) -> ConfigError:
    return ConfigError("config-malformed", "%s: %s" % (FILE, text))


def _no_constant(text: str) -> None:
    raise ValueError("%s is not a number" % text)


def _unique(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    seen = dict(pairs)
    if len(seen) != len(pairs):
        raise ValueError("a field is given twice")
    return seen


class Config:
    """The parts of an adapter's configuration that decide what it computes.

    Defaults are PEFT's (`r` 8, `lora_alpha` 8).

    :raises ConfigError: damaged, or a variant that plain slots cannot hold.
    """

    def __init__(self, fields: Dict[str, Any]) -> None:
        self.fields = fields
        self._check_variant()
        self.rank = _rank("r", fields.get("r", 8))
        self.alpha = _alpha("lora_alpha", fields.get("lora_alpha", 8))
        self.rslora = fields.get("use_rslora", False)
        if not isinstance(self.rslora, bool):
            raise _malformed("use_rslora is %.40r, not true or false" % self.rslora)
        self.rank_pattern = {
            k: _rank("rank_pattern[%r]" % k, v)
            for k, v in _patterns("rank_pattern", fields).items()
        }
        self.alpha_pattern = {
            k: _alpha("alpha_pattern[%r]" % k, v)
            for k, v in _patterns("alpha_pattern", fields).items()
        }
        self._targets = _selection("target_modules", fields)
        self._excluded = _selection("exclude_modules", fields)
        self._layers = _layers(fields)

    @classmethod
    def read(cls, folder: str) -> Config:
        """The configuration of an adapter folder.

        :raises ConfigError: see the class; also where there is no file.
        """
        path = os.path.join(folder, FILE)
        try:
            with open(path, "rb") as file:
                raw = file.read(LIMIT + 1)
        except OSError as error:
            raise ConfigError(
                "config-missing", "%s: %s" % (FILE, error.strerror or error)
            ) from None
        if len(raw) > LIMIT:
            raise _malformed("larger than %d bytes" % LIMIT)
        try:
            fields = json.loads(
                raw.decode("utf-8"),
                object_pairs_hook=_unique,
                parse_constant=_no_constant,
            )
        except (ValueError, RecursionError) as error:
            raise _malformed("not JSON: %s" % error) from None
        if not isinstance(fields, dict):
            raise _malformed("not a JSON object")
        return cls(fields)

    def rank_of(self, module: str) -> int:
        """The rank of a module, given by its path in the base model."""
        return int(_first(self.rank_pattern, module, self.rank))

    def alpha_of(self, module: str) -> float:
        """The alpha of a module, given by its path in the base model."""
        return float(_first(self.alpha_pattern, module, self.alpha))

    def targets(self, module: str, layer: int) -> bool:
        """Whether PEFT would put an adapter on the module (it ignores others).

        True where the file does not say: PEFT then has a table by architecture.
        """
        if self._layers is not None and layer not in self._layers:
            return False
        if self._excluded is not None and _selected(self._excluded, module):
            return False
        return self._targets is None or _selected(self._targets, module)

    def _check_variant(self) -> None:
        fields = self.fields
        kind = fields.get("peft_type")
        if kind is None:
            raise _malformed("no peft_type")
        if kind != "LORA":
            raise ConfigError("unsupported", "%s: peft_type is %.40r" % (FILE, kind))
        bias = fields.get("bias", "none")
        if bias not in ("none", None):
            raise ConfigError("unsupported", "%s: bias is %.40r" % (FILE, bias))
        for name, what in VARIANTS.items():
            if fields.get(name):
                raise ConfigError("unsupported", "%s: %s: %s" % (FILE, name, what))
        start = fields.get("init_lora_weights", True)
        if (start.lower() if isinstance(start, str) else start) not in HARMLESS:
            raise ConfigError(
                "unsupported",
                "%s: init_lora_weights %.40r changes the base" % (FILE, start),
            )
        for name, value in fields.items():
            if name not in KNOWN and value:
                raise ConfigError(
                    "unsupported", "%s: unknown field %.80r" % (FILE, name)
                )


def _rank(name: str, value: Any) -> int:
    if type(value) is not int or value <= 0:
        raise _malformed("%s is %.40r, not a positive integer" % (name, value))
    return value


def _alpha(name: str, value: Any) -> float:
    if type(value) not in (int, float) or not _finite(value):
        raise _malformed("%s is %.40r, not a number" % (name, value))
    return float(value)


def _finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond any float
        return False


def _patterns(name: str, fields: Dict[str, Any]) -> Dict[str, Any]:
    patterns = fields.get(name)
    if patterns is None:
        return {}
    if not isinstance(patterns, dict):
        raise _malformed("%s is not a map" % name)
    for key in patterns:
        try:
            re.compile(r"(.*\.)?(%s)$" % key)
        except (re.error, OverflowError, RecursionError) as error:
            raise _malformed("%s: %.80r: %s" % (name, key, error)) from None
    return patterns


def _selection(name: str, fields: Dict[str, Any]) -> Any:
    value = fields.get(name)
    if value in (None, [], "all-linear"):
        return None
    if isinstance(value, str):
        try:
            return re.compile(value)
        except (re.error, OverflowError, RecursionError) as error:
            raise _malformed("%s: %s" % (name, error)) from None
    if isinstance(value, list) and all(isinstance(v, str) for v in value):
        return value
    raise _malformed("%s is neither a list of names nor a pattern" % name)


def _layers(fields: Dict[str, Any]) -> Any:
    value = fields.get("layers_to_transform")
    if value is None or value == []:
        return None
    if type(value) is int:
        return [value]
    if isinstance(value, list) and all(type(v) is int for v in value):
        return value
    raise _malformed("layers_to_transform is neither an integer nor a list of them")


def _selected(selection: Any, module: str) -> bool:
    """PEFT's rule: a pattern matches in full, a name exactly or behind a dot."""
    if not isinstance(selection, list):
        return selection.fullmatch(module) is not None
    return any(module == s or module.endswith("." + s) for s in selection)


def _first(patterns: Dict[str, Any], module: str, default: Any) -> Any:
    """PEFT's rule: patterns in the file's order, the first that matches wins."""
    for key, value in patterns.items():
        if re.match(r"(.*\.)?(%s)$" % key, module):
            return value
    return default
