"""What a board says about itself, checked before anybody believes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated
from typing import Any
from typing import Literal
from typing import TypeVar

from pydantic import AfterValidator
from pydantic import BaseModel
from pydantic import BeforeValidator
from pydantic import ConfigDict
from pydantic import Field
from pydantic import ValidationError
from pydantic import ValidatorFunctionWrapHandler
from pydantic import WrapValidator

from harness.boards.words import printable
from harness.probes.scales import unpacked
from harness.runtimes.runtime import Capabilities
from harness.runtimes.runtime import Identity
from harness.runtimes.runtime import Slot


__all__ = ["Failure", "Hello", "Memory", "Opened", "Reported", "Slots", "parse"]

# Beyond these a reply is nonsense, whatever the model: a 2B model has 784 slots.
SLOTS = 100_000
FACTS = 200
TEXT = 300
BIG = 1 << 48


R = TypeVar("R", bound=BaseModel)


def _clean(text: str) -> str:
    return printable(text, TEXT)


# 2,000 is what our own probe cuts its texts to; all are shortened here.
Text = Annotated[str, Field(max_length=2000), AfterValidator(_clean)]
Count = Annotated[int, Field(ge=0, le=BIG)]
Facts = Annotated[dict[Text, Text], Field(max_length=FACTS)]


class _Reply(BaseModel):
    # Fields that are not ours to know are dropped, so a newer probe may tell more.
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class _Error(_Reply):
    kind: Literal["refused", "setup", "bug"]
    code: Text
    text: Text


class Failure(_Reply):
    """A reply that says no."""

    ok: Literal[False]
    error: _Error


def _distinct(phases: list[str]) -> list[str]:
    if len(set(phases)) < len(phases):
        raise ValueError("a phase is named twice")
    return phases


class _Capabilities(_Reply):
    phases: Annotated[
        list[Literal["prefill", "decode"]],
        Field(min_length=1, max_length=2),
        AfterValidator(_distinct),
    ]
    slots_readable: bool
    scope: Literal["process", "session", "request"]
    runtime_scale: bool
    max_adapters: Count
    max_active: Count
    max_sessions: Count
    max_prompt: Annotated[int, Field(ge=1, le=BIG)]
    max_context: Annotated[int, Field(ge=1, le=BIG)]
    chunk: Count = 0
    cache_files: bool = False
    context_switch: bool = False
    bundles: bool = False


class Hello(_Reply):
    """The first frame of a probe."""

    hello: Count
    platform: Text
    versions: Facts
    model: Facts
    capabilities: _Capabilities

    def identity(self, probe: str) -> Identity:
        """Who answered, with the digest of the probe that we sent."""
        return Identity(self.platform, self.versions, probe, self.model)

    def able(self) -> Capabilities:
        """What it says it can do."""
        facts = self.capabilities.model_dump()
        return Capabilities(**facts | {"phases": tuple(facts["phases"])})

    @property
    def vocab(self) -> int:
        """Size of the vocabulary, 0 where it does not say."""
        text = self.model.get("vocab", "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 8 else 0


class _Slot(_Reply):
    name: Text
    net: Text
    layer: Annotated[int, Field(ge=-1, le=100_000)]
    module: Text
    factor: Literal["A", "B"]
    reserved_rank: Count
    width: Count
    dtype: Literal["bf16", "f32"]
    size: Count


class Slots(_Reply):
    """The reply to `slots`."""

    slots: Annotated[list[_Slot], Field(max_length=SLOTS)]

    def all(self) -> list[Slot]:
        """The slots in our own words."""
        return [Slot(**s.model_dump()) for s in self.slots]


def _none_lost(given: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    """Names that only differ in what is not printed would be one afterwards."""
    kept = handler(given)
    if len(kept) < len(given):
        raise ValueError("two names look the same")
    return kept


class Reported(_Reply):
    """The reply to `reported`; a scale that is not finite is a finding."""

    adapters: Annotated[
        dict[Text, Annotated[float, BeforeValidator(unpacked)]],
        Field(max_length=FACTS),
        WrapValidator(_none_lost),
    ]


class Opened(_Reply):
    """The reply to `session`."""

    session: Count


class Memory(_Reply):
    """The reply to `memory`."""

    memory: Annotated[dict[Text, Count], Field(max_length=FACTS)]


def parse(kind: type[R], header: Mapping[str, Any]) -> R:
    """A reply of a kind.

    :raises ValueError: it is not one; the text says where, in one line.
    """
    try:
        return kind.model_validate(header)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(p) for p in first["loc"])
        raise ValueError(printable(f"{place}: {first['msg']}")) from None
