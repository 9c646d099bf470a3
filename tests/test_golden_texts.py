"""Prompts written as text, in the tokens of a base."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from harness.errors import UsageFault
from harness.golden.texts import prompts_from_texts


pytest.importorskip("transformers")
pytestmark = pytest.mark.reference

BASE = Path(__file__).parent.parent / "fixtures" / "base"
LINE = {"name": "a", "domain": "mail", "prompt": "Hello", "continuation": "Dear friend"}


def written(path: Path, *items: object) -> Path:
    path.write_text("\n".join(json.dumps(item) for item in items))
    return path


def test_a_turn_in_the_chat_template_and_plain_continuation(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    prompts, samples = prompts_from_texts(written(tmp_path / "p", LINE), BASE)
    tokenizer = AutoTokenizer.from_pretrained(str(BASE))
    (prompt,) = prompts
    assert tokenizer.decode(prompt.tokens) == (
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokenizer.decode(prompt.continuation) == "Dear friend"
    assert samples == {}


def test_samples_of_an_adapter_are_apart(tmp_path: Path) -> None:
    own = LINE | {"name": "b", "adapter": "letters-v2"}
    prompts, samples = prompts_from_texts(written(tmp_path / "p", LINE, own), BASE)
    assert [p.name for p in prompts] == ["a"]
    assert [p.name for p in samples["letters-v2"]] == ["b"]


@pytest.mark.parametrize(
    "item",
    [7, [], {}, LINE | {"prompt": ""}, LINE | {"name": 3}, LINE | {"adapter": 1}],
)
def test_a_line_that_is_no_prompt_is_named(item: object, tmp_path: Path) -> None:
    path = written(tmp_path / "p", LINE, item)
    with pytest.raises(UsageFault, match=r"p:2"):
        prompts_from_texts(path, BASE)


def test_only_samples_are_not_enough(tmp_path: Path) -> None:
    path = written(tmp_path / "p", LINE | {"adapter": "x"})
    with pytest.raises(UsageFault, match="no main prompt"):
        prompts_from_texts(path, BASE)


def test_a_base_without_a_tokenizer(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    shutil.copy(BASE / "config.json", base)
    with pytest.raises(UsageFault, match=r"no tokenizer|no chat template"):
        prompts_from_texts(written(tmp_path / "p", LINE), base)
