"""The sign-off: data, page, seal, and what a hostile board cannot do to them."""

from __future__ import annotations

import json
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from synthetic_run import SyntheticRun
from synthetic_run import control
from synthetic_run import distance
from synthetic_run import same
from synthetic_run import scale

from harness.errors import Infrastructure
from harness.errors import UsageFault
from harness.evidence import RunFolder
from harness.evidence import Status
from harness.report import verify
from harness.report import write
from harness.report.bundle import replace_all
from harness.report.signoff import read


HOSTILE = "<script>alert(1)</script>'\"&\x1b[2J\u202e${7*7}{{7*7}}$x^2$\ud800"


class Page(HTMLParser):
    """Text and tags of a page; notes what is never closed."""

    VOID = frozenset({"meta", "link", "br", "img", "hr", "path", "use", "rect"})

    def __init__(self, content: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.attributes.extend(attrs)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:
            pass

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.attributes.extend(attrs)

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def page_of(folder: Path) -> Page:
    return Page((folder / "signoff.html").read_text())


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run in which all is well, for reading only."""
    folder = tmp_path_factory.mktemp("sound") / "run"
    assert write(SyntheticRun().sound().keep(folder)).verdict == "GO"
    return folder


def test_a_sound_run_is_go_and_says_on_what(sound: Path) -> None:
    doc = read(sound)
    assert doc["verdict"] == "GO"
    assert doc["exit_status"] == 0
    assert doc["boards"] == {"sim-bm1688": "GO", "sim-rk1828": "GO"}
    assert doc["planned"] == doc["executed"] == len(doc["checks"])
    assert doc["missing"] == [] and doc["failures"] == []
    assert {a["name"] for a in doc["adapters"]} == {"domain-r8", "wide-r32"}
    assert all(
        cell["verdict"] == "GO" and cell["status"] == "PASS"
        for adapter in doc["adapters"]
        for cell in adapter["boards"].values()
    )
    assert all(row["found"] for row in doc["controls"]) and doc["controls"]
    text = page_of(sound).text
    for words in (
        doc["reason"],
        "All boards are simulated",
        "no statement on hardware timing, DDR",
        doc["adapters"][0]["digest"],
        "Released by",
    ):
        assert words in text


def test_closest_calls_are_ordered_and_leave_out_what_is_exact(tmp_path: Path) -> None:
    run = SyntheticRun(boards=("sim-bm1688",))
    run.check("R54", "near", "sim-bm1688", "wide-r32", [distance(0.0161)])
    write(run.sound().keep(tmp_path / "run"))
    calls = read(tmp_path / "run")["closest_calls"]
    used = [row["used"] for row in calls]
    assert calls[0]["requirements"] == ["R54"]
    assert used == sorted(used, reverse=True) and min(used) > 0


def test_a_failing_check_leads_with_its_reason(tmp_path: Path) -> None:
    run = SyntheticRun()
    run.check("R20", "scale", "sim-bm1688", "wide-r32", [scale(0.25)])
    release = write(run.sound().keep(tmp_path / "run"))
    doc = read(tmp_path / "run")
    assert (release.verdict, release.exit_status) == ("NO-GO", 1)
    assert doc["boards"] == {"sim-bm1688": "NO-GO", "sim-rk1828": "GO"}
    assert doc["requirements"]["R20"]["status"] == "FAIL"
    assert doc["requirements"]["R20"]["tightest"]["outcome"] == "FAIL"
    assert doc["requirements"]["R12"]["status"] == "PASS"
    text = page_of(tmp_path / "run").text
    assert text.index("NO-GO") < text.index("Candidates and boards")
    assert doc["failures"][0]["reason"] in text


def test_inconclusive_is_never_green(tmp_path: Path) -> None:
    run = SyntheticRun()
    run.check("R20", "scale", "sim-bm1688", "wide-r32", [scale(1.0, spread=0.02)])
    release = write(run.sound().keep(tmp_path / "run"))
    doc = read(tmp_path / "run")
    assert (release.verdict, release.exit_status) == ("INCONCLUSIVE", 10)
    assert doc["requirements"]["R20"]["status"] == "INCONCLUSIVE"


def test_a_missed_control_makes_the_run_invalid(tmp_path: Path) -> None:
    run = SyntheticRun()
    run.check(
        "R91",
        "weak",
        "sim-bm1688",
        "wide-r32",
        [control("weak", found=False)],
        status=Status.INCONCLUSIVE,
        reason="not found wrong",
    )
    release = write(run.sound().keep(tmp_path / "run"))
    doc = read(tmp_path / "run")
    assert (release.verdict, release.exit_status) == ("INVALID", 11)
    assert [row["name"] for row in doc["controls"] if not row["found"]] == ["weak"]


def test_misses_are_named_and_a_board_that_is_away_is_one_obstacle(
    tmp_path: Path,
) -> None:
    run = SyntheticRun()
    for number in range(30):
        run.check(
            "R10",
            f"away{number}",
            "lab-1",
            "wide-r32",
            status=Status.MISS,
            reason="[board-away] lab-1: no answer",
        )
    run.check("R12", "never", "sim-bm1688", "wide-r32", ended=False)
    release = write(run.sound().keep(tmp_path / "run"))
    doc = read(tmp_path / "run")
    assert (release.verdict, release.exit_status) == ("INCONCLUSIVE", 12)
    assert len(doc["missing"]) == 31
    assert doc["planned"] == doc["executed"] + 31
    first = (tmp_path / "run" / "signoff.html").read_text().split("</section>")[0]
    assert first.count("[board-away] lab-1: no answer</td>") == 1
    text = page_of(tmp_path / "run").text
    assert "test_never[sim-bm1688-wide-r32]" in text
    assert "not reached" in text


def test_retries_keep_every_attempt(tmp_path: Path) -> None:
    run = SyntheticRun()
    who = ("R30", "residue", "sim-bm1688", "wide-r32")
    run.check(*who, status=Status.ERROR, reason="[host-unreachable] reset")
    run.check(*who, [same()], attempt=2, planned=False)
    release = write(run.sound().keep(tmp_path / "run"))
    [row] = read(tmp_path / "run")["retries"]
    assert release.verdict == "GO"
    assert row["attempts"] == ["ERROR", "PASS"]
    assert row["reason"] == "[host-unreachable] reset"


def test_what_was_not_tested_is_said(tmp_path: Path) -> None:
    run = SyntheticRun()
    run.check(
        "R21",
        "scale",
        "sim-bm1688",
        status=Status.SKIP,
        reason="the platform has no run-time scale",
    )
    write(run.sound().keep(tmp_path / "run"))
    untested = read(tmp_path / "run")["untested"]
    reasons = {row["requirement"]: row["reason"] for row in untested}
    assert reasons["R21"] == "the platform has no run-time scale"
    assert reasons["R72"] == "no check of this run covers it"
    assert "R12" not in reasons
    # R10-R13, R20, R53, R90, R91, and the three that the page itself meets.
    assert read(tmp_path / "run")["coverage"]["tested"] == 11


def test_the_control_requirement_shows_a_control(sound: Path) -> None:
    requirements = read(sound)["requirements"]
    assert requirements["R91"]["tightest"]["kind"] == "control"
    assert requirements["R20"]["tightest"]["measured"] == "scale of the delta"


def test_an_injected_fault_is_written_on_the_first_page(tmp_path: Path) -> None:
    write(SyntheticRun(fault="forget-clear").sound().keep(tmp_path / "run"))
    first = (tmp_path / "run" / "signoff.html").read_text().split("</section>")[0]
    assert "Fault put in on purpose: forget-clear" in first


@pytest.mark.parametrize("planned", [0, 1])
def test_a_run_without_checks_still_has_a_page(tmp_path: Path, planned: int) -> None:
    run = SyntheticRun(boards=("sim-bm1688",), adapters=())
    for _ in range(planned):
        run.check("R10", "never", "sim-bm1688", ended=False)
    run.frame(boards=())
    release = write(run.keep(tmp_path / "run"))
    assert release.verdict == "INCONCLUSIVE"
    assert "no check ran" in page_of(tmp_path / "run").text
    assert verify(tmp_path / "run") == []


def test_hundreds_of_checks_stay_readable(tmp_path: Path) -> None:
    boards = tuple(f"board-{k}" for k in range(6))
    adapters = tuple(f"adapter-{k:02}" for k in range(10))
    run = SyntheticRun(boards=boards, adapters=adapters)
    write(run.sound().keep(tmp_path / "run"))
    doc = read(tmp_path / "run")
    assert len(doc["checks"]) > 700
    first = (tmp_path / "run" / "signoff.html").read_text().split("</section>")[0]
    assert "2 more boards" in first and "2 more adapters" in first
    assert all(
        f">{board} " in (tmp_path / "run" / "signoff.html").read_text()
        for board in boards
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tmp_path = tmp_path_factory.mktemp("hostile")
    run = SyntheticRun(
        boards=("sim-bm1688",), adapters=(f"a{HOSTILE}",), hostile=HOSTILE
    )
    run.check(
        "R12",
        "hostile",
        "sim-bm1688",
        f"a{HOSTILE}",
        status=Status.FAIL,
        reason="wrong: ",
    )
    write(run.sound().keep(tmp_path / "run"))
    return tmp_path / "run"


class TestHostileBoard:
    """Nothing that a board says becomes markup, a fetch, or a forged line."""

    def test_the_page_has_no_script_and_fetches_nothing(self, folder: Path) -> None:
        page = page_of(folder)
        assert "script" not in page.tags
        assert not {"iframe", "object", "embed", "link", "img"} & set(page.tags)
        assert not page.open
        for name, value in page.attributes:
            assert not name.startswith("on")
            if name in ("href", "xlink:href", "src"):
                assert str(value).startswith("#")
        assert "@import" not in page.text
        assert not re.search(r"url\((?!#)", (folder / "signoff.html").read_text())

    def test_what_it_said_is_shown_as_text(self, folder: Path) -> None:
        text = page_of(folder).text
        assert "<script>alert(1)</script>" in text
        assert "${7*7}{{7*7}}" in text

    def test_no_character_deceives_the_reader(self, folder: Path) -> None:
        content = (folder / "signoff.html").read_text()
        assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e\ud800-\udfff]", content)

    def test_the_bundle_still_verifies(self, folder: Path) -> None:
        assert verify(folder) == []


def test_the_manifest_is_what_sha256sum_checks(sound: Path) -> None:
    subprocess.run(
        ["sha256sum", "--check", "--strict", "--quiet", "MANIFEST.sha256"],
        cwd=sound,
        check=True,
    )
    listed = (sound / "MANIFEST.sha256").read_text().splitlines()
    files = {p.name for p in sound.iterdir()} - {"MANIFEST.sha256"}
    assert {line[66:] for line in listed} == files


def test_latest_points_to_the_last_run(tmp_path: Path) -> None:
    for name in ("run-1", "run-2"):
        write(SyntheticRun(boards=("b",), adapters=()).sound().keep(tmp_path / name))
    latest = tmp_path / "latest"
    assert latest.is_symlink() and latest.resolve() == tmp_path / "run-2"
    assert not list(tmp_path.glob(".latest*"))


def test_changes_since_the_last_run_on_the_same_boards(tmp_path: Path) -> None:
    write(SyntheticRun().sound().keep(tmp_path / "run-1"))
    write(SyntheticRun(boards=("other",)).sound().keep(tmp_path / "run-2"))
    write(SyntheticRun(fault="demo").sound().keep(tmp_path / "run-3"))
    run = SyntheticRun()
    run.check("R20", "scale", "sim-bm1688", "wide-r32", [scale(0.25)])
    write(run.sound().keep(tmp_path / "run-4"))
    changes = json.loads((tmp_path / "run-4" / "changes.json").read_text())
    assert "GO became NO-GO" in changes["summary"]
    rows = {row["what"]: (row["was"], row["now"]) for row in changes["rows"]}
    assert rows["wide-r32 on sim-bm1688"] == ("PASS", "FAIL")
    assert changes["summary"] in page_of(tmp_path / "run-4").text
    assert json.loads((tmp_path / "run-1" / "changes.json").read_text()) is None


def test_a_write_that_fails_leaves_the_former_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = SyntheticRun().sound().keep(tmp_path / "run")
    write(run)
    before = {p.name: p.read_bytes() for p in run.path.iterdir()}
    calls = 0

    def full(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(Infrastructure, match="No space left"):
        write(run)
    assert {p.name: p.read_bytes() for p in run.path.iterdir()} == before


def test_replace_all_leaves_no_scratch_files(tmp_path: Path) -> None:
    replace_all(tmp_path / "new", {"a": b"1", "b": b"2"})
    assert {p.name for p in (tmp_path / "new").iterdir()} == {"a", "b"}


def test_an_attestation_names_subjects_by_digest(tmp_path: Path) -> None:
    write(SyntheticRun().sound().keep(tmp_path / "go"))
    run = SyntheticRun()
    run.check("R20", "scale", "sim-bm1688", "wide-r32", [scale(0.25)])
    write(run.sound().keep(tmp_path / "nogo"))
    for name, result in (("go", "PASSED"), ("nogo", "FAILED")):
        statement = json.loads((tmp_path / name / "attestation.json").read_text())
        assert statement["_type"] == "https://in-toto.io/Statement/v1"
        assert statement["predicate"]["result"] == result
        assert len(statement["subject"]) == 4
        for subject in statement["subject"]:
            assert re.fullmatch("[0-9a-f]{64}", subject["digest"]["sha256"])


def test_not_a_run_folder_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageFault):
        write(RunFolder(tmp_path))
    (tmp_path / "signoff.json").write_text("[" * 100_000)
    with pytest.raises(UsageFault):
        read(tmp_path)


def test_the_same_records_give_the_same_page(sound: Path, tmp_path: Path) -> None:
    again = tmp_path / "run"
    write(SyntheticRun().sound().keep(again))
    assert (again / "signoff.html").read_bytes() == (
        sound / "signoff.html"
    ).read_bytes()
