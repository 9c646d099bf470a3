"""boards.toml: every mistake is told with file, line, key and cure."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from pydantic import ValidationError

from harness.boards.address import Address
from harness.boards.inventory import Board
from harness.boards.inventory import Inventory
from harness.errors import UsageFault


REAL = """\
[boards.lab]
platform = "bm1688"
host = "ssh://linaro@192.0.2.10:22"
model = "/data/a.bmodel"
"""
SIMULATED = """\
[boards.sim]
platform = "bm1688"
simulated = true
base = "base"
convert = "{python} -m convert --rank '3 2'"
"""

BUNDLED = """\
[boards.sim]
platform = "rk1828"
simulated = true
base = "base"
convert = "{python} -m convert"
bundle = "{python} -m bundle --dtype 'int 8'"
reserved_rank = 64
guards_cache_files = true
"""


def load(tmp_path: Path, text: str) -> Inventory:
    path = tmp_path / "boards.toml"
    path.write_text(text, encoding="utf-8")
    return Inventory.load(path)


def fault(tmp_path: Path, text: str) -> str:
    with pytest.raises(UsageFault) as caught:
        load(tmp_path, text)
    assert caught.value.cure
    assert "\n" not in str(caught.value)
    return str(caught.value)


class TestGood:
    def test_the_project_has_an_inventory(self) -> None:
        inventory = Inventory.load(Path(__file__).parents[1] / "boards.toml")
        platforms = {board.name: board.platform for board in inventory.simulated()}
        assert platforms == {"sim-bm1688": "bm1688", "sim-rk1828": "rk1828"}
        assert inventory.real() == ()

    def test_the_commented_board_is_a_valid_one(self, tmp_path: Path) -> None:
        text = (Path(__file__).parents[1] / "boards.toml").read_text()
        lines = [
            line[2:]
            for line in text.splitlines()
            if line.startswith("# ") and ("=" in line or line.startswith("# ["))
        ]
        (board,) = load(tmp_path, "\n".join(lines)).real()
        assert board.address == Address("linaro", "192.0.2.10", 22)

    def test_order_and_defaults(self, tmp_path: Path) -> None:
        inventory = load(tmp_path, SIMULATED + REAL)
        sim, lab = inventory.boards
        assert (sim.name, lab.name) == ("sim", "lab")
        assert inventory.simulated() == (sim,)
        assert inventory.real() == (lab,)
        assert (lab.python, lab.workdir, lab.loader) == (
            "python3",
            ".harness",
            "reference",
        )
        assert lab.reserved_rank == 32

    def test_a_board_that_takes_bundles(self, tmp_path: Path) -> None:
        sim, lab = load(tmp_path, BUNDLED + REAL).boards
        assert sim.platform == "rk1828" and sim.reserved_rank == 64
        assert sim.bundle == "{python} -m bundle --dtype 'int 8'"
        assert sim.guards_cache_files is True
        assert lab.bundle is None and lab.guards_cache_files is False

    def test_a_real_board_with_a_model_may_have_bundles_made(
        self, tmp_path: Path
    ) -> None:
        text = REAL.replace("bm1688", "rk1828") + 'base = "b"\nbundle = "make it"\n'
        (board,) = load(tmp_path, text).boards
        assert board.bundle == "make it" and board.convert is None

    def test_paths_are_relative_to_the_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOME", "/home/me")
        text = REAL + (
            'identity = "~/.ssh/key"\nknown_hosts = "known"\nbase = "/abs/base"\n'
            'golden = "../golden"\nadapters = ["one", "~/two"]\n'
            'loader = "our/loader.py:Loader"\n'
        )
        (board,) = load(tmp_path, text).boards
        assert board.identity == Path("/home/me/.ssh/key")
        assert board.known_hosts == tmp_path / "known"
        assert board.base == Path("/abs/base")
        assert board.golden == tmp_path / "../golden"
        assert board.adapters == (tmp_path / "one", Path("/home/me/two"))
        assert board.loader == f"{tmp_path}/our/loader.py:Loader"

    def test_a_loader_in_a_module_stays(self, tmp_path: Path) -> None:
        (board,) = load(tmp_path, REAL + 'loader = "ours.loader:Loader"\n').boards
        assert board.loader == "ours.loader:Loader"

    def test_boards_are_frozen(self, tmp_path: Path) -> None:
        (board,) = load(tmp_path, REAL).boards
        with pytest.raises(ValidationError):
            board.name = "other"  # type: ignore[misc]

    def test_a_started_board_has_an_address(self, tmp_path: Path) -> None:
        (board,) = load(tmp_path, SIMULATED).boards
        assert board.address is None
        started = board.model_copy(update={"host": "ssh://me@127.0.0.1:4022"})
        assert started.address == Address("me", "127.0.0.1", 4022)

    def test_adapter_folders(self, tmp_path: Path) -> None:
        for name in ("b", "a"):
            (tmp_path / "all" / name).mkdir(parents=True)
            (tmp_path / "all" / name / "adapter_config.json").write_text("{}")
        (tmp_path / "all" / "notes").mkdir()
        (board,) = load(tmp_path, REAL + 'adapters = "all"\n').boards
        assert [f.name for f in board.adapter_folders()] == ["a", "b"]
        (board,) = load(tmp_path, REAL + 'adapters = ["all/b"]\n').boards
        assert board.adapter_folders() == (tmp_path / "all/b",)
        (board,) = load(tmp_path, REAL).boards
        assert board.adapter_folders() == ()
        for bad in ('"none"', '["all/b", "all/notes"]', "[]"):
            (board,) = load(tmp_path, REAL + f"adapters = {bad}\n").boards
            with pytest.raises(UsageFault, match=r"no adapter_config.json"):
                board.adapter_folders()

    def test_pick(self, tmp_path: Path) -> None:
        inventory = load(tmp_path, SIMULATED + REAL)
        names = [board.name for board in inventory.pick(["lab", "sim", "lab"])]
        assert names == ["lab", "sim"]
        with pytest.raises(UsageFault, match="did you mean 'lab'"):
            inventory.pick(["lap"])
        with pytest.raises(UsageFault, match="known boards: sim, lab"):
            inventory.pick(["zzzz"])

    def test_no_boards_are_no_fault(self, tmp_path: Path) -> None:
        assert load(tmp_path, "# nothing yet\n").boards == ()


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        (REAL.replace("platform", "platfrom"), 2, "did you mean 'platform'"),
        (REAL + "zzzz = 1\n", 5, "known keys: platform, "),
        (REAL + 'name = "x"\n', 5, r"\[boards.lab\]"),
        (REAL.replace('"bm1688"', '"bm1684"'), 2, "'bm1688'"),
        (REAL.replace('"bm1688"', "3"), 2, "'platform'"),
        (REAL.replace('platform = "bm1688"', ""), 1, "'platform' is missing"),
        (REAL + 'simulated = "yes"\n', 5, "'simulated'.*true or false"),
        (REAL + 'reserved_rank = "32"\n', 5, "'reserved_rank'.*whole number"),
        (REAL + "reserved_rank = 32.0\n", 5, "'reserved_rank'.*whole number"),
        (REAL + "reserved_rank = 0\n", 5, "'reserved_rank'.*greater"),
        (REAL + "base = 3\n", 5, "'base'.*quotes"),
        (REAL + 'golden = ""\n', 5, "'golden'.*empty"),
        (REAL + "adapters = [3]\n", 5, "'adapters'.*quotes"),
        (REAL + 'loader = "loader.py"\n', 5, "'loader'.*file.py:Class"),
        (REAL + 'loader = ":x y"\n', 5, "'loader'"),
        (REAL + 'workdir = "~/harness"\n', 5, "'workdir'.*in full"),
        (REAL + 'workdir = "../x"\n', 5, "'workdir'"),
        (REAL + 'python = ""\n', 5, "'python'"),
        (REAL + 'python = "-c"\n', 5, "'python'.*option"),
        (REAL.replace("ssh://", "http://"), 3, "'host'.*ssh://user@host:port"),
        (REAL.replace("linaro@", ""), 3, "'host'.*user is missing"),
        (REAL.replace(":22", ":99999"), 3, "'host'.*[Pp]ort"),
        (
            REAL.replace('host = "ssh://linaro@192.0.2.10:22"', ""),
            1,
            "'host' is missin",
        ),
        (REAL.replace('model = "/data/a.bmodel"', ""), 1, "'model' or 'convert'"),
        (REAL + 'convert = "make"\n', 5, "'convert' needs 'base'"),
        (REAL + 'base = "b"\nconvert = "a \'b"\n', 6, "'convert'.*quotation"),
        (REAL + 'base = "b"\nconvert = " "\n', 6, "'convert'.*empty"),
        (REAL + 'bundle = "make"\n', 5, "'bundle' needs 'base'"),
        (REAL + 'base = "b"\nbundle = "a \'b"\n', 6, "'bundle'.*quotation"),
        (REAL + 'base = "b"\nbundle = ""\n', 6, "'bundle'.*empty"),
        (REAL + 'base = "b"\nbundle = ["a", "b"]\n', 6, "'bundle'.*quotes"),
        (REAL + 'guards_cache_files = "yes"\n', 5, "'guards_cache_files'.*true or"),
        (REAL + "guards_cache_files = 1\n", 5, "'guards_cache_files'.*true or"),
        (REAL + "guards_cache_file = true\n", 5, "did you mean 'guards_cache_files'"),
        (BUNDLED.replace('"rk1828"', '"rk1808"'), 2, "'rk1828'"),
        (BUNDLED.replace("bundle =", "# "), 1, "'bundle' is missing.*adapters"),
        (REAL.replace("bm1688", "rk1828"), 1, "'bundle' is missing.*adapters"),
        (BUNDLED.replace("convert =", "# "), 1, "needs 'convert' and 'base'"),
        (SIMULATED + 'host = "ssh://a@b"\n', 6, "'host' has no place"),
        (SIMULATED + 'identity = "x"\n', 6, "'identity' has no place"),
        (SIMULATED + 'known_hosts = "x"\n', 6, "'known_hosts' has no place"),
        (SIMULATED + 'model = "/x"\n', 6, "'model' has no place"),
        (SIMULATED.replace("convert", "# "), 1, "needs 'convert' and 'base'"),
        (SIMULATED.replace("base =", "# "), 5, "'convert' needs 'base'"),
        (REAL + REAL, 5, "'boards.lab' stands here and in line 1"),
        (REAL + 'model = "/b"\n', 5, "'boards.lab.model' stands here and in line 4"),
        ("\n[board.lab]\n", 2, "did you mean 'boards'"),
        ("\nboards = 3\n", 2, r"\[boards.NAME\]"),
        ("[boards]\nlab = 3\n", 2, r"\[boards.lab\]"),
        ('[boards."a b"]\nplatform = "bm1688"\n', 1, "no name for a board"),
        ("[boards.lab]\nplatform = bm1688\n", 2, "not TOML"),
        ("[boards.lab\n", 1, "not TOML"),
        ('[boards.lab]\nplatform = "bm1688', 2, "not TOML"),
        # Other spellings of the same keys.
        ('[boards."lab"]\nplatform = "x"\n', 2, "'platform'"),
        ('[boards]\nlab.platform = "x"\n', 2, "'platform'"),
        ('boards.lab.platform = "x"\n', 1, "'platform'"),
        ('[boards]\n\nlab = {platform = "x"}\n', 3, "'platform'"),
    ],
)
def test_a_mistake_is_told_at_its_line(
    text: str, line: int, said: str, tmp_path: Path
) -> None:
    told = fault(tmp_path, text)
    assert f"boards.toml:{line}: " in told
    import re

    assert re.search(said, told), told


def test_a_password_is_refused_and_not_repeated(tmp_path: Path) -> None:
    told = fault(tmp_path, REAL.replace("linaro@", "linaro:hunter2@"))
    assert "boards.toml:3" in told
    assert "password" in told
    assert "hunter2" not in told


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match=r"none.toml.*No such file"):
        Inventory.load(tmp_path / "none.toml")
    with pytest.raises(UsageFault, match="Is a directory"):
        Inventory.load(tmp_path)
    (tmp_path / "boards.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageFault, match="not UTF-8"):
        Inventory.load(tmp_path / "boards.toml")


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    key=st.from_regex(r"[A-Za-z0-9_-]{1,12}", fullmatch=True).filter(
        lambda key: key not in Board.model_fields
    ),
    before=st.integers(0, 4),
)
def test_any_unknown_key_is_told_at_its_line(
    key: str, before: int, tmp_path: Path
) -> None:
    lines = REAL.splitlines()
    lines[1 + before : 1 + before] = ["# a comment", f"{key} = 1"]
    told = fault(tmp_path, "\n".join(lines))
    assert f"boards.toml:{lines.index(f'{key} = 1') + 1}: unknown key '{key}'" in told
    assert "did you mean" in told or "known keys: " in told


@settings(max_examples=200, deadline=None)
@given(text=st.text("[]boards.lab=\"'{}#\n ssh:/@x1,-", max_size=60))
def test_no_text_ends_in_a_traceback(
    text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_text(text)
    try:
        Inventory.load(path)
    except UsageFault as error:
        assert str(path) in str(error)


class TestAddress:
    @pytest.mark.parametrize(
        ("text", "user", "host", "port", "known"),
        [
            ("ssh://a@h", "a", "h", 22, "h"),
            ("ssh://a@h:22", "a", "h", 22, "h"),
            ("ssh://a@h:2022/", "a", "h", 2022, "[h]:2022"),
            ("ssh://a@192.0.2.1:22", "a", "192.0.2.1", 22, "192.0.2.1"),
            ("ssh://a@[2001:db8::1]:22", "a", "2001:db8::1", 22, "2001:db8::1"),
            ("ssh://a@[::1]:2022", "a", "::1", 2022, "[::1]:2022"),
        ],
    )
    def test_parse(
        self, text: str, user: str, host: str, port: int, known: str
    ) -> None:
        address = Address.parse(text)
        assert address == Address(user, host, port)
        assert address.known_as == known
        assert Address.parse(str(address)) == address

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "h",
            "a@h",
            "ssh://",
            "ssh://h",
            "ssh://@h",
            "ssh://a@",
            "ssh://a:b@h",
            "ssh://a@h:0",
            "ssh://a@h:x",
            "ssh://a@h/path",
            "ssh://a@h?x",
            "ssh://a@[::1",
            "ssh://-oProxyCommand=x@h",
            "ssh://a@-h",
            "ssh://a b@h",
        ],
    )
    def test_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match=r"."):
            Address.parse(text)
