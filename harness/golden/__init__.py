"""What the right answer is.

`harness.golden.reference` makes goldens and needs torch, transformers and peft; it
is not imported here.
"""

from __future__ import annotations

from harness.golden.gap import Gap
from harness.golden.gap import gap_of
from harness.golden.identity import BaseIdentity
from harness.golden.identity import adapter_digest
from harness.golden.identity import base_identity
from harness.golden.index import AdapterEntry
from harness.golden.index import prompts_of
from harness.golden.prompts import Prompt
from harness.golden.prompts import PromptSet
from harness.golden.scores import Scores
from harness.golden.store import GoldenMissing
from harness.golden.store import GoldenStore
from harness.golden.store import Reference


__all__ = [
    "AdapterEntry",
    "BaseIdentity",
    "Gap",
    "GoldenMissing",
    "GoldenStore",
    "Prompt",
    "PromptSet",
    "Reference",
    "Scores",
    "adapter_digest",
    "base_identity",
    "gap_of",
    "prompts_of",
]
