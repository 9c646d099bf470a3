"""Whole acceptances through the command: sound boards, wrong boards, real SSH."""

from __future__ import annotations

import getpass
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from inner_run import ADAPTERS
from inner_run import FIXTURES
from inner_run import RK1828
from inner_run import Ended
from inner_run import real
from inner_run import simulated
from old_python import with_numpy
from ssh_server import SSHD
from ssh_server import serving
from whole_run import COMMAND
from whole_run import accept
from whole_run import board
from whole_run import failed
from whole_run import harness

from harness.boards.simulated import start
from harness.deadline import Deadline
from harness.simulator.farm import prepare
from harness.simulator.faults.catalogue import catalogue


class TestSoundBoard:
    @pytest.fixture(scope="class")
    @classmethod
    def ended(cls, tmp_path_factory: pytest.TempPathFactory) -> Ended:
        """A whole acceptance of one small adapter."""
        return accept(tmp_path_factory.mktemp("sound"), board("r4-qv"))

    def test_go(self, ended: Ended) -> None:
        assert ended.status == 0, ended.output
        assert "GO  all" in ended.output

    def test_sign_off_says_what_a_release_needs(self, ended: Ended) -> None:
        doc = ended.signoff
        assert doc["verdict"] == "GO" and doc["boards"] == {"sim-1": "GO"}
        [adapter] = doc["adapters"]
        assert adapter["name"] == "r4-qv" and len(adapter["digest"]) == 64
        assert adapter["boards"]["sim-1"]["status"] == "PASS"
        assert doc["planned"] == doc["executed"] > 80 and doc["missing"] == []
        assert doc["retries"] == [] and doc["partial"] is False
        requirements = doc["requirements"]
        assert {"R01", "R10", "R11", "R12", "R13", "R20", "R30", "R40", "R91"} <= set(
            requirements
        )
        assert {r["status"] for r in requirements.values()} <= {"PASS", "SKIP"}
        scale = requirements["R20"]["tightest"]
        for part in ("value", "limit", "limit_source", "smallest_visible"):
            assert scale[part] is not None, part
        assert len(doc["controls"]) >= 10
        assert all(control["found"] for control in doc["controls"])
        facts = doc["environment"]["sim-1"]
        for part in ("versions", "probe", "model", "base", "golden", "host"):
            assert facts[part], part
        assert facts["simulated"] is True and facts["fault"] == ""

    def test_page(self, ended: Ended) -> None:
        page = (ended.folder / "reports" / "latest" / "signoff.html").read_text()
        assert "GO" in page and "r4-qv" in page and "sim-1" in page

    def test_show(self, ended: Ended, tmp_path: Path) -> None:
        latest = ended.folder / "reports" / "latest"
        assert "GO  all" in harness("report", "show", latest, cwd=tmp_path).output
        told = harness("report", "show", latest, "--json", cwd=tmp_path)
        assert json.loads(told.output) == ended.signoff

    def test_verify(self, ended: Ended, tmp_path: Path) -> None:
        latest = ended.folder / "reports" / "latest"
        sound = harness("report", "verify", latest, cwd=tmp_path)
        assert sound.status == 0, sound.output
        copy = tmp_path / "copy"
        shutil.copytree(latest, copy)
        records = copy / "records.jsonl"
        content = bytearray(records.read_bytes())
        # A digit of a measured number, somewhere in the middle.
        place = content.index(b"0.0", len(content) // 2) + 2
        content[place] ^= 1
        records.write_bytes(content)
        damaged = harness("report", "verify", copy, cwd=tmp_path)
        assert damaged.status == 1 and "records.jsonl: changed" in damaged.output


# What each fault must be found by: requirements that come to FAIL.
FAULTS = {
    "adapter-ignored": {"R11", "R20", "R22"},
    "base-changed": {"R10"},
    "clear-does-nothing": {"R12", "R15"},
    "clear-keeps-nan": {"R42"},
    "clear-keeps-one-layer": {"R12", "R15"},
    "decode-graph-ignores-adapter": {"R11", "R53"},
    "factor-transposed": {"R11", "R22", "R30"},
    "failed-load-half-written": {"R40"},
    "failed-load-kills-process": {"R40"},
    "failed-load-silent": {"R40"},
    "layer-shifted": {"R11", "R22"},
    "no-slots": {"R01"},
    "reports-wrong-state": {"R15"},
    "residue-larger-rank": {"R30"},
    "residue-more-modules": {"R30"},
    "scale-applied-twice": {"R03", "R20"},
    "scale-reserved-rank": {"R03", "R20"},
    "second-load-incomplete": {"R30", "R66"},
    "stale-name": {"R30"},
}
# These touch one thing only. Nothing else may fail: every check starts from a sound
# state, whatever the fault left behind in the one before.
NARROW = {
    "clear-does-nothing",
    "clear-keeps-nan",
    "clear-keeps-one-layer",
    "failed-load-half-written",
    "failed-load-silent",
    "reports-wrong-state",
    "stale-name",
}


@pytest.mark.parametrize(
    ("fault", "checks"),
    [
        ("scale-reserved-rank", "test_scale"),
        ("clear-does-nothing", "test_cleared_equals_base or test_reports"),
        ("decode-graph-ignores-adapter", "test_loaded_equals or test_prefill_and"),
    ],
)
def test_a_wrong_board_is_no_go(tmp_path: Path, fault: str, checks: str) -> None:
    ended = accept(tmp_path, board("r4-qv"), f"--fault={fault}", "-k", checks)
    assert ended.status == 1, ended.output
    assert ended.signoff["verdict"] == "NO-GO"
    assert failed(ended) >= FAULTS[fault]
    assert ended.signoff["environment"]["sim-1"]["fault"] == fault


def test_json_is_for_machines(tmp_path: Path) -> None:
    """Stdout holds one JSON value, whatever the run came to."""
    command = [*COMMAND, "run", "--json", f"--report={tmp_path}", "--board=nosuch"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert json.loads(ended.stdout) == {"exit_status": 4}
    assert "no board 'nosuch'" in ended.stderr


def test_every_fault_is_in_the_table() -> None:
    known = catalogue("bm1688")
    benign = {name for name, fault in known.items() if fault.benign}
    assert set(FAULTS) == set(known) - benign and benign == {"noisy"}


# Faults that show only after certain operations in a row, by what finds them.
HISTORIES = {
    "history_faults:ClearGoesBack": "R12",
    "history_faults:RefusalInBaseLeavesDirt": "R40",
    "history_faults:SameSizeIsTheSame": "R30",
    "history_faults:LoadedAgainDoubles": "R13",
    "history_faults:ReportsTheFirst": "R15",
    "history_devices:DecodeKeepsItsCopy": "R13",
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", HISTORIES)
def test_a_fault_that_needs_a_history_is_found(tmp_path: Path, fault: str) -> None:
    for module in ("history_faults.py", "history_devices.py"):
        shutil.copy(Path(__file__).with_name(module), tmp_path)
    ended = accept(tmp_path, board("r8-all", "r4-qv"), f"--fault={fault}")
    assert ended.status == 1, ended.output
    assert HISTORIES[fault] in failed(ended)


@pytest.mark.slow
class TestWholeRuns:
    @pytest.mark.parametrize("fault", FAULTS)
    def test_every_fault_is_no_go(self, tmp_path: Path, fault: str) -> None:
        boards = board("r8-all", "r4-qv")
        ended = accept(tmp_path, boards, f"--fault={fault}")
        assert ended.status == 1, ended.output
        assert ended.signoff["verdict"] == "NO-GO"
        assert failed(ended) >= FAULTS[fault]
        if fault in NARROW:
            assert failed(ended) == FAULTS[fault]
        assert ended.signoff["missing"] == []
        latest = tmp_path / "reports" / "latest"
        assert harness("report", "verify", latest, cwd=tmp_path).status == 0

    def test_noise_alone_is_go(self, tmp_path: Path) -> None:
        ended = accept(tmp_path, board("r8-all", "r4-qv"), "--fault=noisy")
        assert ended.status == 0, ended.output
        assert ended.signoff["verdict"] == "GO"

    @pytest.mark.reference
    def test_an_adapter_that_peft_writes(self, tmp_path: Path) -> None:
        """From PEFT's folder over `harness golden` to GO."""
        adapter = write_adapter(tmp_path / "made")
        out = tmp_path / "golden"
        made = harness(
            *("golden", FIXTURES / "base", "--adapter", adapter),
            *("--prompts", FIXTURES / "golden", "--out", out),
            cwd=tmp_path,
        )
        assert made.status == 0, made.output
        choice = [f"--adapter={adapter}", f"--golden={out}"]
        ended = accept(tmp_path, simulated(), *choice)
        assert ended.status == 0, ended.output
        assert [a["name"] for a in ended.signoff["adapters"]] == ["made"]


def write_adapter(folder: Path) -> Path:
    """A LoRA that PEFT made on the fixture base, with an effect of about 0.35."""
    import torch
    from peft import LoraConfig
    from peft import get_peft_model

    from harness.golden.gap import effect_of
    from harness.golden.index import prompts_of
    from harness.golden.reference import load_base

    prompts, _ = prompts_of(FIXTURES / "golden")
    few = prompts.few(4, 8)

    def logits(model: Any) -> Any:
        rows = []
        with torch.no_grad():
            for prompt in few:
                ids = torch.tensor([prompt.tokens + prompt.continuation])
                out = model(input_ids=ids, use_cache=False).logits[0]
                rows.append(out[len(prompt.tokens) - 1 : -1])
        return torch.cat(rows).numpy()

    torch.manual_seed(7)
    base = load_base(FIXTURES / "base", "float32")
    before = logits(base)
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=6,
        lora_alpha=9,
        target_modules=r".*language_model\.layers\.\d+\.(self_attn|mlp)\.[qvd].*_proj",
        init_lora_weights=False,
    )
    tuned = get_peft_model(base, config)
    factors = [w for name, w in tuned.named_parameters() if "lora_B" in name]
    for _ in range(4):  # the effect grows almost in proportion to B
        effect = effect_of(before, logits(tuned))
        for weight in factors:
            weight.data *= 0.35 / effect
    tuned.save_pretrained(folder, save_embedding_layers=False)
    return folder


# Through other doors than our own server and Python.

FEW = "test_loaded_equals or test_cleared_equals or test_restart"


def all_passed(ended: Ended) -> None:
    """A part of the checks ran, and no one came to anything but a PASS."""
    assert ended.status == 10, ended.output
    assert ended.signoff["counts"].keys() == {"PASS"}
    assert "partial run" in ended.signoff["reason"]


@pytest.mark.skipif(not SSHD.exists(), reason="no OpenSSH server")
def test_through_openssh(tmp_path: Path) -> None:
    """A board behind sshd, its runtime found through `python =`."""
    there = tmp_path / "board"
    prepare(there, "bm1688", sys.executable, None)
    python = there / "bin" / "python"
    # The farm's boards compute on one thread each, as the machine has few.
    python.write_text(f'#!/bin/sh\nOMP_NUM_THREADS=1 exec {python}3 "$@"\n')
    python.chmod(0o755)
    with serving("openssh", tmp_path / "sshd") as server:
        kind, key = (server.folder / "host_key.pub").read_text().split()[:2]
        known = tmp_path / "known_hosts"
        known.write_text(f"[127.0.0.1]:{server.port} {kind} {key}\n")
        entry = real(
            "lab-1",
            f"ssh://{getpass.getuser()}@127.0.0.1:{server.port}",
            identity=f'"{server.folder / "identity"}"',
            known_hosts=f'"{known}"',
            python=f'"{python}"',
            workdir=f'"{there / "work"}"',
        )
        adapter = f"--adapter={ADAPTERS / 'r4-qv'}"
        ended = accept(tmp_path, entry, "--board=lab-1", adapter, "-k", FEW)
    all_passed(ended)
    assert ended.signoff["environment"]["lab-1"]["simulated"] is False


@pytest.mark.parametrize(
    ("platform", "keys"), [("bm1688", {}), ("rk1828", RK1828)], ids=["bm1688", "rk1828"]
)
def test_on_python_3_8(tmp_path: Path, platform: str, keys: dict[str, str]) -> None:
    """The oldest Python that a board may have."""
    python = with_numpy()
    if python is None:
        pytest.skip("no Python 3.8 with numpy on this machine")
    root = tmp_path / "board"
    made = start("old", platform, root, None, Deadline(60), python=str(python))
    try:
        entry = real(
            "lab-1",
            made.host,
            identity=f'"{made.identity}"',
            known_hosts=f'"{made.known_hosts}"',
            workdir=f'"{made.workdir}"',
            **keys,
        )
        adapter = f"--adapter={ADAPTERS / 'r4-qv'}"
        ended = accept(tmp_path, entry, "--board=lab-1", adapter, "-k", FEW)
    finally:
        made.stop()
    all_passed(ended)
    assert ended.signoff["environment"]["lab-1"]["host"]["python"].startswith("3.8.")
