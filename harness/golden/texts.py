"""Prompts written as text: how a golden's prompts are made for a new base."""

from __future__ import annotations

import json
from collections.abc import Callable
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.errors import UsageFault
from harness.golden.prompts import Prompt
from harness.golden.prompts import PromptSet


__all__ = ["prompts_from_texts"]

FIELDS = ("name", "domain", "prompt", "continuation")
# Tens of prompts decide; a file with more than this is a data set given by mistake.
MOST = 10_000

Encode = Callable[[str, str], tuple[list[int], list[int]]]


def prompts_from_texts(
    path: Path, base: Path
) -> tuple[PromptSet, dict[str, PromptSet]]:
    """The prompts of a JSON-lines file, in the base's tokens.

    Each line holds `name`, `domain`, `prompt` (what the user says) and
    `continuation` (what is teacher-forced after it); with `adapter` it is a sample
    of that adapter's own domain (R16) and not one of the main prompts.

    :returns: the main prompts, and the samples by adapter name.
    :raises UsageFault: a line that is not such an object, no main prompt, or a base
        without a tokenizer that has a chat template.
    """
    encode = _encoder(base)
    main: list[Prompt] = []
    samples: dict[str, list[Prompt]] = {}
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageFault(
            f"cannot be read: {error}", where=str(path), cure="give a JSON-lines file"
        ) from None
    if len(lines) > MOST:
        raise UsageFault(f"more than {MOST} prompts", where=str(path))
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        item = _item(line, f"{path}:{number}")
        tokens, continuation = encode(item["prompt"], item["continuation"])
        adapter = item.get("adapter")
        (samples.setdefault(adapter, []) if adapter else main).append(
            Prompt(item["name"], item["domain"], tuple(tokens), tuple(continuation))
        )
    if not main:
        raise UsageFault(
            "no main prompt", where=str(path), cure="write lines without `adapter`"
        )
    return PromptSet(tuple(main)), {
        name: PromptSet(tuple(prompts)) for name, prompts in samples.items()
    }


def _item(line: str, where: str) -> Mapping[str, Any]:
    try:
        item = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageFault(f"not JSON: {error}", where=where) from None
    texts = isinstance(item, dict) and all(
        isinstance(item.get(name), str) and item[name] for name in FIELDS
    )
    if not texts or not isinstance(item.get("adapter", ""), str):
        raise UsageFault(
            f"not an object with the texts {', '.join(FIELDS)}",
            where=where,
            cure="see `harness golden --help`",
        )
    found: Mapping[str, Any] = item
    return found


def _encoder(base: Path) -> Encode:
    """Tokens of a user's turn by the base's chat template, and of plain text."""
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise UsageFault(
            "transformers is not installed",
            where="harness golden",
            cure="pip install -e '.[reference]'",
        ) from None
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(base), local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise UsageFault(
            f"no tokenizer: {str(error).splitlines()[0]}",
            where=str(base),
            cure="give the folder of the whole checkpoint",
        ) from None
    if not tokenizer.chat_template:
        raise UsageFault("the tokenizer has no chat template", where=str(base))

    def encode(prompt: str, continuation: str) -> tuple[list[int], list[int]]:
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}],
            tokenize=False,
            add_generation_prompt=True,
        )
        return (
            tokenizer.encode(text, add_special_tokens=False),
            tokenizer.encode(continuation, add_special_tokens=False),
        )

    return encode
