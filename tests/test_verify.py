"""Verification fails on one changed byte, wherever it lies."""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from synthetic_run import SyntheticRun
from synthetic_run import distance
from synthetic_run import scale

from harness.errors import UsageFault
from harness.report import verify
from harness.report import write
from harness.report.bundle import MANIFEST
from harness.report.bundle import manifest
from harness.report.bundle import replace
from harness.report.bundle import sums


FILES = (
    "MANIFEST.sha256",
    "arrays",
    "attestation.json",
    "changes.json",
    "records.jsonl",
    "signoff.html",
    "signoff.json",
)


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sealed run, for reading only."""
    folder = tmp_path_factory.mktemp("sealed") / "run"
    run = SyntheticRun(boards=("sim-bm1688",), adapters=("wide-r32",))
    run.check("R54", "near", "sim-bm1688", "wide-r32", [distance(0.0161)])
    kept = run.sound().keep(folder)
    kept.keep(np.arange(6, dtype=np.float32))
    write(kept)
    return folder


@pytest.fixture
def copy(sealed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sealed, tmp_path / "copy"))


def reseal(folder: Path) -> None:
    """What somebody does who wants a change to pass."""
    replace(folder / MANIFEST, manifest(sums(folder)))


def test_an_untouched_run_has_no_problem(sealed: Path) -> None:
    assert {p.name for p in sealed.iterdir()} == set(FILES)
    assert verify(sealed) == []


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
@pytest.mark.parametrize("name", FILES)
def test_one_changed_byte_is_found(
    sealed: Path, tmp_path: Path, name: str, data: st.DataObject
) -> None:
    copy = tmp_path / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(sealed, copy)
    path = copy / name
    if path.is_dir():
        [path] = path.iterdir()
    content = bytearray(path.read_bytes())
    index = data.draw(st.integers(0, len(content) - 1))
    content[index] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    assert verify(copy)


def test_a_file_more_or_less_is_found(copy: Path) -> None:
    (copy / "note.txt").write_text("all is well")
    assert verify(copy) == ["note.txt: not in the manifest"]
    (copy / "note.txt").unlink()
    (copy / "attestation.json").unlink()
    assert verify(copy) == ["attestation.json: missing"]


def test_a_link_is_no_evidence(copy: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes((copy / "attestation.json").read_bytes())
    (copy / "attestation.json").unlink()
    (copy / "attestation.json").symlink_to(tmp_path / "elsewhere")
    assert any("no regular file" in problem for problem in verify(copy))


def test_a_resealed_verdict_is_derived_again(copy: Path) -> None:
    doc = json.loads((copy / "signoff.json").read_text())
    doc["verdict"] = "NO-GO"
    (copy / "signoff.json").write_text(json.dumps(doc))
    reseal(copy)
    problems = verify(copy)
    assert 'signoff.json: verdict: says "NO-GO", the records say "GO"' in problems


def test_another_harness_is_told_from_tampering(
    sealed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules change from version to version; then the bytes are still intact."""
    module = importlib.import_module("harness.report.verify")
    monkeypatch.setattr(module, "rederive", lambda records: ["other"])
    assert verify(sealed) == [
        "the bytes are intact, as written by harness 0.1.0+464f8cb00000",
        "other",
    ]


def test_a_resealed_number_is_decided_again(copy: Path) -> None:
    records = copy / "records.jsonl"
    text = records.read_text()
    assert '"value":0.0161' in text
    records.write_text(text.replace('"value":0.0161', '"value":0.0001'))
    reseal(copy)
    assert verify(copy)


def test_a_resealed_limit_is_decided_again(tmp_path: Path) -> None:
    run = SyntheticRun(boards=("sim-bm1688",), adapters=("wide-r32",))
    run.check("R20", "scale", "sim-bm1688", "wide-r32", [scale(0.97)])
    write(run.sound().keep(tmp_path / "run"))
    records = tmp_path / "run" / "records.jsonl"
    records.write_text(
        records.read_text()
        .replace('"outcome":"FAIL"', '"outcome":"PASS"')
        .replace('"status":"FAIL"', '"status":"PASS"')
    )
    reseal(tmp_path / "run")
    assert any("recorded PASS, derived FAIL" in p for p in verify(tmp_path / "run"))


def test_evidence_and_printed_page_belong_together(copy: Path) -> None:
    """Whoever signs paper signs a digest that a new manifest does not change."""
    (copy / "note.txt").write_text("added later")
    reseal(copy)
    problems = verify(copy)
    assert "note.txt: no file of a run" in problems
    assert "signoff.html: not what the records print" in problems


@pytest.mark.parametrize("name", ["signoff.html", "attestation.json", "changes.json"])
def test_a_forged_page_under_a_new_manifest_is_found(copy: Path, name: str) -> None:
    path = copy / name
    text = path.read_text()
    path.write_text(text.replace("NO-GO", "GO").replace("PASS", "SKIP") + "\n")
    assert path.read_text() != text
    reseal(copy)
    assert any("not what" in problem for problem in verify(copy))


def test_lost_logits_are_named(tmp_path: Path) -> None:
    run = SyntheticRun(boards=("sim-bm1688",), adapters=("wide-r32",)).sound()
    kept = run.keep(tmp_path / "run")
    digest = kept.keep(np.zeros(3, np.float32))
    records = tmp_path / "run" / "records.jsonl"
    text = records.read_text()
    named = f'"arrays":{{"base":"{digest}"}}'
    records.write_text(text.replace('"arrays":{}', named, 1))
    write(kept)
    assert verify(tmp_path / "run") == []
    shutil.rmtree(tmp_path / "run" / "arrays")
    assert any("'base' are gone" in problem for problem in verify(tmp_path / "run"))


def test_damaged_records_are_a_problem_not_a_traceback(copy: Path) -> None:
    (copy / "records.jsonl").write_text("{}\n" + "[" * 50_000 + "\n")
    reseal(copy)
    assert any("not a record" in problem for problem in verify(copy))
    (copy / "signoff.json").write_bytes(b"\xff\x00")
    assert verify(copy)


def test_a_folder_without_a_manifest_is_a_usage_fault(tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match="give the folder of a run"):
        verify(tmp_path)


def test_many_problems_are_counted(copy: Path) -> None:
    for number in range(100):
        (copy / f"extra-{number}").touch()
    problems = verify(copy)
    assert len(problems) == 21 and problems[-1] == "and 80 problems more"
