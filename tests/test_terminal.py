"""The verdict on a terminal and in a log."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console
from synthetic_run import SyntheticRun
from synthetic_run import scale

from harness.errors import UsageFault
from harness.evidence import Status
from harness.report import show
from harness.report.document import document
from harness.report.terminal import Terminal


ESCAPES = "\x1b[2J\x1b]0;title\x07\u202e[bold]x[/bold]"


def printed(
    run: SyntheticRun, width: int = 100, *, tty: bool = False, encoding: str = "utf-8"
) -> str:
    """What a run's verdict looks like."""
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, errors="strict")
    console = Console(
        file=file,
        width=width,
        force_terminal=tty,
        color_system="standard" if tty else None,
    )
    page = Path("reports/20260621-000000-000001/signoff.html")
    Terminal(console).show(document(run.records), page=page, bundle="ab" * 32)
    file.flush()
    return raw.getvalue().decode(encoding)


def failing() -> SyntheticRun:
    run = SyntheticRun()
    run.check("R20", "scale", "sim-bm1688", "wide-r32", [scale(0.25)])
    run.check("R20", "scale_again", "sim-bm1688", "wide-r32", [scale(0.25)])
    return run.sound()


def test_the_verdict_comes_first() -> None:
    for run, verdict in ((SyntheticRun().sound(), "GO  "), (failing(), "NO-GO  R20")):
        assert printed(run).startswith(verdict)


def test_matrix_failures_calls_counts_and_page() -> None:
    text = printed(failing())
    lines = text.splitlines()
    [row] = [line for line in lines if line.startswith("wide-r32")]
    assert row.split() == ["wide-r32", "FAIL", "14", "of", "16", "passed", "PASS", "14"]
    assert "sim-bm1688 (simulated)" in text
    assert "FAIL R20 sim-bm1688 wide-r32 (2 checks)" in lines
    assert "Closest calls" in lines
    assert any(line.startswith("planned 60, executed 60, missing 0") for line in lines)
    assert "page   reports/20260621-000000-000001/signoff.html" in lines
    assert "bundle sha256:" + "ab" * 32 in lines


def test_a_log_has_no_escapes_and_cuts_nothing() -> None:
    run = SyntheticRun()
    reason = "wrong " * 60 + "end"
    run.check("R20", "x", "sim-bm1688", status=Status.FAIL, reason=reason)
    text = printed(run.sound(), width=60)
    assert "\x1b" not in text
    assert f"    {reason}" in text.splitlines()


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_terminal_is_kept_to_its_width(width: int) -> None:
    run = SyntheticRun(boards=("b1", "b2"), adapters=("a" * 60, "short"))
    run.check("R20", "x", "b1", status=Status.FAIL, reason="wrong " * 60)
    text = printed(run.sound(), width, tty=True)
    for line in text.splitlines():
        visible = re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip()
        # Paths, digests and reasons stay in one piece for whoever copies them.
        if not visible.startswith(("page", "bundle", "planned", "FAIL")):
            assert len(visible) <= width


@pytest.mark.parametrize("tty", [False, True])
def test_a_board_cannot_write_to_the_terminal(tty: bool) -> None:
    run = SyntheticRun(adapters=("a" + ESCAPES,), hostile=ESCAPES)
    run.check("R20", "x", "sim-bm1688", status=Status.FAIL, reason="wrong\nGO forged")
    text = printed(run.sound(), tty=tty)
    assert "\x1b[2J" not in text and "\x1b]" not in text and "\u202e" not in text
    assert "[bold]x[/bold]" in text
    assert not any(line.startswith("GO") for line in text.splitlines())


def test_an_ascii_log_is_no_crash() -> None:
    run = SyntheticRun()
    run.check("R20", "x", "sim-bm1688", status=Status.FAIL, reason="1 ± 0.01 \u2717 中")
    assert "1 ? 0.01" in printed(run.sound(), encoding="ascii")


def test_an_empty_run_prints() -> None:
    assert "no check ran" in printed(SyntheticRun(boards=(), adapters=()))


def test_many_failures_are_counted() -> None:
    run = SyntheticRun()
    for number in range(40):
        run.check(
            "R20", f"x{number}", "b", status=Status.FAIL, reason=f"reason {number}"
        )
    assert "and 28 more on the page" in printed(run)


def test_no_run_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match="give the folder of a run"):
        show(tmp_path, Console())


def test_show_prints_through_pytest(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    from harness.report import write

    write(SyntheticRun(boards=("b1",)).sound().keep(tmp_path / "run"))

    class Reporter(pytest.TerminalReporter):
        written = ""

        def write(self, content: str, **markup: bool) -> None:
            self.written += content

    reporter = Reporter(request.config)
    show(tmp_path / "run", reporter)
    assert reporter.written.startswith(("GO", "\x1b[1;32mGO"))
    assert "signoff.html" in reporter.written
