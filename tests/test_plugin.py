"""The pytest plugin: options, selection, and what a user's mistakes come to."""

from __future__ import annotations

import json
import shutil

import pytest
from inner_run import ADAPTERS
from inner_run import FIXTURES
from inner_run import LIGHT
from inner_run import real
from inner_run import rk1828
from inner_run import simulated


CHECK = '''
import pytest

@pytest.mark.requirement("R10")
def test_check(device, judge):
    """One check."""
    judge.equal(1, 1)

@pytest.mark.requirement("R11")
def test_adapter(device, adapter, judge):
    judge.equal(1, 1)

def test_plain():
    pass
'''


@pytest.fixture
def folder(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> pytest.Pytester:
    """A folder with a simulated board, two checks and a plain test."""
    monkeypatch.setenv("PYTEST_ADDOPTS", LIGHT)
    (pytester.path / "boards.toml").write_text(simulated())
    pytester.makepyfile(test_it=CHECK)
    return pytester


def collected(pytester: pytest.Pytester, *arguments: str) -> list[str]:
    """Names of the tests that would run."""
    result = pytester.runpytest("--collect-only", "-q", *arguments)
    assert result.ret == 0, result.stdout.str() + result.stderr.str()
    return [line.split("::")[1] for line in result.outlines if "::" in line]


def refused(pytester: pytest.Pytester, *arguments: str) -> str:
    """The one line with which a run is refused; nothing was written."""
    result = pytester.runpytest(*arguments)
    text = f"{result.stdout.str()}\n{result.stderr.str()}"
    assert result.ret == pytest.ExitCode.USAGE_ERROR, text
    assert "Traceback" not in text and "INTERNALERROR" not in text, text
    lines = [line for line in text.splitlines() if line.startswith("ERROR")]
    assert len(lines) == 1, text
    assert not (pytester.path / "reports").exists()
    return lines[0]


class TestOptions:
    def test_markers_are_registered(self, pytester: pytest.Pytester) -> None:
        result = pytester.runpytest("--markers")
        result.stdout.fnmatch_lines(
            [
                "@pytest.mark.board: *",
                "@pytest.mark.simulator: *",
                "@pytest.mark.requirement(?ids): *",
            ]
        )

    def test_help(self, pytester: pytest.Pytester) -> None:
        result = pytester.runpytest("--help")
        assert result.ret == 0
        result.stdout.fnmatch_lines(["board acceptance:"])
        text = " ".join(result.stdout.str().split())
        for option in (
            "--boards=FILE",
            "--board=NAME",
            "--adapter=DIR",
            "--golden=DIR",
            "--fault=NAME",
            "--report=DIR",
        ):
            name, _, _ = option.partition("=")
            assert option in text or option.replace("=", " ") in text, name
        for twin in ("board_names (linelist)", "board_fault (string)"):
            assert twin in text

    def test_simulated_boards_alone_by_default(self, folder: pytest.Pytester) -> None:
        inventory = folder.path / "boards.toml"
        inventory.write_text(simulated() + real("lab-1", "ssh://u@192.0.2.1:22"))
        assert collected(folder) == [
            "test_plain",
            "test_check[sim-1]",
            "test_adapter[sim-1-r8-all]",
            "test_adapter[sim-1-r4-qv]",
        ]
        assert collected(folder, "-m", "board") == [
            "test_check[lab-1]",
            "test_adapter[lab-1-r8-all]",
            "test_adapter[lab-1-r4-qv]",
        ]
        assert collected(folder, "-m", "simulator", "-k", "check") == [
            "test_check[sim-1]"
        ]

    def test_command_line_over_ini_over_inventory(
        self, folder: pytest.Pytester
    ) -> None:
        (folder.path / "boards.toml").write_text(simulated() + simulated("sim-2"))
        adapter = ADAPTERS / "r32-half"
        folder.makeini(f"[pytest]\nboard_names = sim-2\nboard_adapters =\n  {adapter}")
        assert collected(folder, "-k", "adapter") == ["test_adapter[sim-2-r32-half]"]
        assert collected(
            folder, "-k", "adapter", "--board=sim-1", f"--adapter={ADAPTERS / 'r4-qv'}"
        ) == ["test_adapter[sim-1-r4-qv]"]

    def test_paths_are_relative_to_where_they_are_written(
        self, folder: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shutil.copytree(ADAPTERS / "r4-qv", folder.path / "mine" / "qv")
        (folder.path / "boards.toml").rename(folder.path / "mine" / "lab.toml")
        folder.makeini(
            "[pytest]\nboards_file = mine/lab.toml\nboard_adapters = mine/qv"
        )
        assert "test_adapter[sim-1-qv]" in collected(folder)
        monkeypatch.chdir(folder.path / "mine")
        tests = str(folder.path / "test_it.py")
        assert "test_adapter[sim-1-qv]" in collected(folder, tests)
        assert "test_adapter[sim-1-r8-all]" in collected(
            folder, tests, f"--adapter={ADAPTERS / 'r8-all'}", "--boards=lab.toml"
        )
        (folder.path / "tox.ini").unlink()
        assert "test_adapter[sim-1-qv]" in collected(
            folder, tests, "--adapter=qv", "--boards=lab.toml"
        )

    def test_without_an_inventory_only_plain_tests_run(
        self, folder: pytest.Pytester
    ) -> None:
        (folder.path / "boards.toml").unlink()
        result = folder.runpytest("-q")
        result.assert_outcomes(passed=1, skipped=2)
        assert not (folder.path / "reports").exists()

    def test_collecting_writes_nothing(self, folder: pytest.Pytester) -> None:
        collected(folder)
        assert not (folder.path / "reports").exists()

    def test_without_the_plugin(self, folder: pytest.Pytester) -> None:
        folder.makepyfile(test_it="def test_plain():\n    pass")
        result = folder.runpytest("-p", "no:boards")
        result.assert_outcomes(passed=1)
        assert folder.runpytest("-p", "no:boards", "--board=x").ret == 4

    def test_a_test_may_have_a_board_of_its_own(self, folder: pytest.Pytester) -> None:
        folder.makepyfile(
            test_it="""
            import pytest

            @pytest.fixture
            def board():
                return "chess"

            def test_own(board):
                assert board == "chess"

            @pytest.mark.parametrize("board", ["sim-1"])
            def test_parametrised(board):
                assert board == "sim-1"
            """
        )
        result = folder.runpytest("-q")
        result.assert_outcomes(passed=2)
        assert not (folder.path / "reports").exists()

    def test_own_tests_that_fail_are_a_failure(self, folder: pytest.Pytester) -> None:
        folder.makepyfile(test_it="def test_plain():\n    assert False")
        assert folder.runpytest().ret == pytest.ExitCode.TESTS_FAILED


class TestFaults:
    """A fault goes where it belongs: simulated boards of one platform or of both."""

    @pytest.fixture
    def both(self, folder: pytest.Pytester) -> pytest.Pytester:
        (folder.path / "boards.toml").write_text(simulated("sim-bm") + rk1828("sim-rk"))
        return folder

    @pytest.mark.parametrize(
        ("fault", "boards"),
        [
            (None, ["sim-bm", "sim-rk"]),
            ("stale-name", ["sim-bm", "sim-rk"]),
            ("residue-larger-rank", ["sim-bm"]),
            ("session-leak", ["sim-rk"]),
            ("harness.simulator.rk1828.bundler:Bundler", ["sim-rk"]),
        ],
    )
    def test_boards_that_were_not_named(
        self, both: pytest.Pytester, fault: str | None, boards: list[str]
    ) -> None:
        options = [f"--fault={fault}"] if fault else []
        found = collected(both, "-k", "test_check", *options)
        assert found == [f"test_check[{name}]" for name in boards]

    @pytest.mark.parametrize(
        ("fault", "boards"),
        [
            ("session-leak", ["sim-bm"]),
            ("no-slots", ["sim-bm", "sim-rk"]),
            ("harness.simulator.rk1828.bundler:Bundler", ["sim-bm"]),
        ],
    )
    def test_boards_that_were_named(
        self, both: pytest.Pytester, fault: str, boards: list[str]
    ) -> None:
        line = refused(both, f"--fault={fault}", *(f"--board={b}" for b in boards))
        assert fault in line and " - " in line
        assert "a fault of the" in line or "belongs to a" in line

    def test_boards_that_an_ini_names(self, both: pytest.Pytester) -> None:
        both.makeini("[pytest]\nboard_names = sim-rk\nboard_fault = no-slots")
        assert "a fault of the bm1688, not of the rk1828: 'no-slots'" in refused(both)
        both.makeini("[pytest]\nboard_names = sim-rk\nboard_fault = session-leak")
        assert collected(both, "-k", "test_check") == ["test_check[sim-rk]"]

    def test_of_no_board_there_is(self, folder: pytest.Pytester) -> None:
        assert "a fault of the rk1828, not of the bm1688" in refused(
            folder, "--fault=session-leak"
        )

    def test_unknown_on_all(self, both: pytest.Pytester) -> None:
        assert "unknown fault: 'nosuch'" in refused(both, "--fault=nosuch")


class TestMistakes:
    def test_no_real_board(self, folder: pytest.Pytester) -> None:
        line = refused(folder, "-m", "board")
        assert "no real board" in line and "boards.toml" in line and "[boards." in line

    @pytest.mark.parametrize(
        ("option", "says"),
        [
            ("--board=nosuch", "no board 'nosuch'*known boards: sim-1"),
            ("--board=sim-2", "no board 'sim-2'*did you mean 'sim-1'?"),
            ("--boards=nosuch.toml", "*nosuch.toml: cannot read the inventory"),
            ("--adapter=nosuch", "*nosuch*"),
            ("--fault=nosuch", "unknown fault: 'nosuch' - give module:Class or one of"),
            ("--fault=json:nosuch", "fault 'json:nosuch': *give a class"),
            ("--golden=nosuch", "*nosuch/golden.json: cannot read"),
            ("--report=boards.toml", "boards.toml takes no run folders"),
            ("--report=/proc/none", "/proc takes no run folders"),
        ],
    )
    def test_of_an_option(
        self, folder: pytest.Pytester, option: str, says: str
    ) -> None:
        line = refused(folder, option)
        assert all(part in line for part in says.split("*")), line

    def test_real_boards_alone_must_be_asked_for(self, folder: pytest.Pytester) -> None:
        (folder.path / "boards.toml").write_text(real("lab-1", "ssh://u@192.0.2.1"))
        line = refused(folder)
        assert "no board to run checks on" in line and "--board" in line

    def test_a_fault_in_a_real_board(self, folder: pytest.Pytester) -> None:
        (folder.path / "boards.toml").write_text(real("lab-1", "ssh://u@192.0.2.1"))
        line = refused(folder, "--fault=adapter-ignored", "--board=lab-1")
        assert "cannot be put into a real board" in line and "lab-1" in line

    @pytest.mark.parametrize("damage", ["no config", "empty", "cut", "not JSON"])
    @pytest.mark.parametrize("given", ["option", "inventory"])
    def test_of_an_adapter(
        self, folder: pytest.Pytester, damage: str, given: str
    ) -> None:
        adapter = folder.path / "mine"
        shutil.copytree(ADAPTERS / "r4-qv", adapter)
        weights = adapter / "adapter_model.safetensors"
        if damage == "no config":
            (adapter / "adapter_config.json").unlink()
        elif damage == "not JSON":
            (adapter / "adapter_config.json").write_text("{")
        else:
            content = weights.read_bytes()
            weights.write_bytes(content[: len(content) // 2 if damage == "cut" else 0])
        if given == "option":
            line = refused(folder, f"--adapter={adapter}")
        else:
            text = simulated(adapters=json.dumps([str(adapter)]))
            (folder.path / "boards.toml").write_text(text)
            line = refused(folder)
        assert str(adapter) in line
        assert " - " in line, "no cure"

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("[boards", "boards.toml:1"),
            (simulated(platfrom='"bm1688"'), "unknown key 'platfrom'"),
            (simulated(simulated='"yes"'), "write true or false"),
            (simulated(adapters=""), "no adapters to accept"),
            (simulated(golden=""), "no golden"),
            (simulated(adapters='["nosuch"]'), "no adapter_config.json in"),
        ],
    )
    def test_of_the_inventory(
        self, folder: pytest.Pytester, text: str, says: str
    ) -> None:
        (folder.path / "boards.toml").write_text(text)
        line = refused(folder)
        assert says in line and ("boards.toml" in line or "sim-1" in line)

    def test_golden_of_another_base(self, folder: pytest.Pytester) -> None:
        base = folder.path / "other"
        shutil.copytree(FIXTURES / "base", base)
        weights = bytearray((base / "model.safetensors").read_bytes())
        weights[-1] ^= 1
        (base / "model.safetensors").write_bytes(weights)
        text = simulated(base=f'"{base}"')
        (folder.path / "boards.toml").write_text(text)
        line = refused(folder, f"--golden={FIXTURES / 'golden'}")
        assert "golden.json" in line and str(base) in line and "base it was" in line

    def test_checkpoint_of_another_shape(self, folder: pytest.Pytester) -> None:
        base = folder.path / "other"
        shutil.copytree(FIXTURES / "base", base)
        config = json.loads((base / "config.json").read_text())
        config["text_config"]["hidden_size"] *= 2
        (base / "config.json").write_text(json.dumps(config))
        text = simulated(base=f'"{base}"')
        (folder.path / "boards.toml").write_text(text)
        line = refused(folder)
        assert "base" in line and " - " in line

    def test_wrong_expression(self, folder: pytest.Pytester) -> None:
        assert "board and" in refused(folder, "-m", "board and")
