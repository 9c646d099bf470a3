"""What an Allure report is given beside the tests themselves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from synthetic_run import SyntheticRun
from synthetic_run import scale

from harness.report.allure import attach
from harness.report.allure import results_folder
from harness.report.allure import write_results
from harness.report.document import document
from harness.report.document import judgements


def rows() -> list[dict[str, Any]]:
    run = SyntheticRun()
    run.check("R20", "good", "sim-bm1688", "wide-r32", [scale(1.001)])
    run.check("R20", "bad", "sim-bm1688", "wide-r32", [scale(0.25)])
    return judgements(run.records)


SUITE = """
import json
from harness.report.allure import attach

def test_numbers():
    for row in json.load(open("rows.json")):
        attach(row)
"""


@pytest.fixture
def result(tmp_path: Path) -> dict[str, Any]:
    """The result of a test that attached a passing and a failing judgement."""
    (tmp_path / "rows.json").write_text(json.dumps(rows()))
    (tmp_path / "test_it.py").write_text(SUITE)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "--alluredir=out", "test_it.py"]
    # Without the harness' own plugin: no boards are wanted here.
    command += ["-p", "no:boards", "-p", "no:cacheprovider"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=60)
    [path] = (tmp_path / "out").glob("*-result.json")
    return dict(json.loads(path.read_text()))


def test_each_judgement_is_a_step_with_its_numbers(
    result: dict[str, Any], tmp_path: Path
) -> None:
    good, bad = result["steps"]
    assert result["status"] == good["status"] == "passed"
    assert bad["status"] == "failed"
    assert "0.25" in bad["name"] and "limit 0.99" in bad["name"]
    [attachment] = bad["attachments"]
    data = json.loads((tmp_path / "out" / attachment["source"]).read_text())
    assert data["measured"] == "scale of the delta" and data["outcome"] == "FAIL"


def test_measured_numbers_stay_out_of_the_history(result: dict[str, Any]) -> None:
    assert result["parameters"]
    assert all(parameter["excluded"] for parameter in result["parameters"])


def test_without_allure_nothing_happens() -> None:
    attach(rows()[0])


def test_results_name_what_was_tested(tmp_path: Path) -> None:
    run = SyntheticRun(hostile="\nVerdict=GO\\: \u4e2d").sound()
    write_results(tmp_path, document(run.records))
    lines = (tmp_path / "environment.properties").read_text("ascii").splitlines()
    facts = dict(line.split("=", 1) for line in lines)
    assert facts["Verdict"] == "GO" and lines[0] == "Verdict=GO"
    assert facts["sim-bm1688.platform"] == "bm1688"
    assert facts["sim-bm1688.versions.runtime"] == (
        "3.4.9\\u000aVerdict=GO\\\\: \\u4e2d"
    )
    assert sum(line.startswith("Verdict") for line in lines) == 1
    categories = json.loads((tmp_path / "categories.json").read_text())
    assert {"Board is wrong", "Harness or lab"} <= {c["name"] for c in categories}
    executor = json.loads((tmp_path / "executor.json").read_text())
    assert executor["buildName"] == "20260621-000000-000001"


def test_only_the_controller_writes_results(tmp_path: Path) -> None:
    class Config:
        def getoption(self, name: str, default: object = None) -> object:
            return str(tmp_path) if name == "allure_report_dir" else default

    config: Any = Config()
    assert results_folder(config) == tmp_path
    config.workerinput = {}
    assert results_folder(config) is None
