# SPDX-License-Identifier: Apache-2.0
"""Words of others on a terminal, in a spreadsheet and as numbers; captures that are bombs; TOML that takes for ever."""

from __future__ import annotations

import ast
import json
import resource
import subprocess
import sys
import zlib
from pathlib import Path

import msgspec
import pytest

from powerprof.attribution import capture
from powerprof.database.replication_status import parse_status
from powerprof.energy.meters import meter_log
from powerprof.measure import turbostat
from powerprof.stacks import image
from powerprof.stacks.rust_names import demangle_legacy, demangle_v0
from powerprof.system.errors import DataError
from powerprof.system.foreign_data import loader, reading
from powerprof.system.foreign_text import escape_formulas, printable, printable_lines, whole
from powerprof.workloads.reading import read_workload
from tests.conftest import REPOSITORY, Cli
from tests.programs.cpu_time import least_cpu_s
from tests.unit.layers import sources

ESCAPES = "\x1b]0;title\x07\x1b[2J\x9b31m\r\n\u202e\u2028\x85\x7f"


def test_no_escape_sequence_of_a_saved_run_reaches_the_terminal(powerprof_cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "idle-0001"
    folder.mkdir()
    record = {"schema": f"powerprof.run/1{ESCAPES}", "command": ESCAPES, "started_at": ESCAPES}
    (folder / "run.json").write_text(json.dumps(record))
    done = powerprof_cli(["--runs-dir", str(tmp_path), "runs"])
    assert done.code == 0
    assert len(done.out.splitlines()) == 2  # the run, and what it said
    assert all(line.isprintable() for line in done.out.rstrip("\n").split("\n"))
    shown = powerprof_cli(["--runs-dir", str(tmp_path), "report", "idle-0001"])
    assert shown.code == 1 and all(line.isprintable() for line in shown.err.splitlines())


def test_there_is_one_way_to_the_terminal() -> None:
    """Only the printers, the line of progress, `write_output` and the entry point write to stdout or stderr."""
    allowed = {"cli/terminal.py", "cli/__init__.py", "report/files.py"}
    found = []
    for path in sorted((REPOSITORY / "powerprof").rglob("*.py")):
        name = str(path.relative_to(REPOSITORY / "powerprof"))
        for node in sources.walk(path.read_text()):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            if called == "print" or (called.startswith(("sys.stdout.", "sys.stderr.")) and "write" in called):
                found.append(name)
    # These run in children whose output is read.
    children = {"tracing/bpf/compiler.py", "stacks/libstdcxx.py", "system/reader_child.py", "system/fetching.py"}
    assert set(found) - allowed <= children


def test_printable() -> None:
    assert printable(ESCAPES) == "?]0;title??[2J?31m??????"
    assert printable("a b\xa0é ± −") == "a b\xa0é ± −"
    assert printable_lines("a\tb\nc\x1b\r\n") == "a\tb\nc??\n"


@pytest.mark.parametrize(
    "cell", ["=1+1", "+1", "-1", "@x", "\t=1", "\r=1", " =1", "\xa0=1", "=cmd", "a;=1", "a\n=1", "a\r\n+1"]
)
def test_a_formula_is_disarmed(cell: str) -> None:
    safe = escape_formulas(cell)
    for part in safe.replace("\r", "\n").replace("\t", "\n").replace(";", "\n").split("\n"):
        assert not part.lstrip(" \xa0").startswith(("=", "+", "-", "@", "＝"))


@pytest.mark.parametrize("cell", ["operator-", "a=b", "std::less<int>", "−1", "vector<int, -1>", "", "thread/sql/main"])
def test_a_name_is_left_alone(cell: str) -> None:
    assert escape_formulas(cell) == cell


def test_whole_numbers() -> None:
    assert [whole(x) for x in ("7", "0", str((1 << 64) - 1), 5, b"12")] == [7, 0, (1 << 64) - 1, 5, 12]
    for other in ("", "-1", "²", "١", "1_0", "9" * 5000, str(1 << 64), True, None, 1.5, -1, " 1", "0x1"):
        assert whole(other) is None


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x\ny"),
        OverflowError("x"),
        KeyError("x"),
        RecursionError(),
        MemoryError(),
        EOFError(),
        zlib.error("x"),
    ],
)
def test_what_python_says_of_bytes_is_one_error(error: Exception) -> None:
    with pytest.raises(DataError) as found, reading("file"):
        raise error
    assert found.value.message.startswith("file: ") and "\n" not in found.value.message


def test_a_mistake_of_ours_stays_one() -> None:
    @loader(0)
    def read(path: str) -> None:
        raise TypeError("ours")

    with pytest.raises(TypeError):
        read("file")


LONG = "9" * 5000


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (turbostat.parse_turbostat, f"usec\tCPU\tBusy%\tC6\n1\t0\t1\t0x{'f' * 5000}\n"),
        (turbostat.parse_turbostat, f"usec\tCPU\tBusy%\tC6\n1\t0\t1\t0x{'f' * 300}\n"),
        (meter_log.parse_meter_log, 'time,watts\n1,"' + "x" * 200_000 + '"\n2,3\n'),
        (image.parse_maps, f"1000-2000 r-xp 0 0:0 {LONG} /x"),
        (image.parse_maps, f"1000-2000 r-xp 0 0:0 {'²'} /x"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)[:30]),
)
def test_figures_that_are_none_are_refused(read: object, text: str) -> None:
    with pytest.raises(DataError):
        read(text, "file")  # type: ignore[operator]


@pytest.mark.parametrize(
    "name", ["_ZN²x17h0123456789abcdefE", "_ZN3²aaE", "_RNvC²3foo", "_RNvCs²_1a1b", "_RNvC1aT" + "T" * 4000]
)
def test_names_with_other_digits_are_names(name: str) -> None:
    assert demangle_legacy(name) is None
    assert demangle_v0(name) is None


def test_a_status_of_odd_figures_has_none() -> None:
    row = {"Seconds_Behind_Master": LONG, "Master_Port": "²", "Replicate_Ignore_Server_Ids": f"1,²,2,{LONG}"}
    found = parse_status(row)
    assert (found.seconds_behind, found.source_port, found.ignored_server_ids) == (None, None, (1, 2))


BOMBS = {
    "lists of nothing": {"host": {"a": [[]] * 20_000_000}},
    "small numbers": {"functions": dict.fromkeys(range(300_000), "")},
    "zeros": {"exits": bytes(900 << 20)},
    "tasks": {"tasks": [[1, 1, "", "", False]] * 4_000_000},
}
_CHILD = """
import resource, sys
from pathlib import Path
from powerprof.attribution import capture
from powerprof.system.errors import DataError
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    capture.load(Path(sys.argv[1]))
except DataError as error:
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10, error.message)
"""


def packed(name: str, tmp_path: Path) -> Path:
    """A bomb, made piece by piece."""
    (field, value), *_ = BOMBS[name].items()
    worker = zlib.compressobj(1)
    path = tmp_path / "capture.bin"
    with path.open("wb") as file:
        data = msgspec.msgpack.encode({field: value})
        for at in range(0, len(data), 16 << 20):
            file.write(worker.compress(data[at : at + (16 << 20)]))
        file.write(worker.flush())
    return path


@pytest.mark.parametrize("name", BOMBS)
def test_a_capture_that_is_a_bomb_costs_little(tmp_path: Path, name: str) -> None:
    path = packed(name, tmp_path)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run([sys.executable, "-c", _CHILD, str(path)], capture_output=True, text=True, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr[-300:]
    megabytes, _, said = done.stdout.partition(" ")
    assert int(megabytes) < 200 and "capture.bin: " in said
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 5


def test_a_capture_with_names_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "capture.bin"
    path.write_bytes(zlib.compress(b"\x81\xaastarted_at\xa2\xff\xfe"))
    with pytest.raises(DataError):
        capture.load(path)


@pytest.mark.parametrize(
    "text",
    ["a." * 20_000 + "a=1", "[" + "a." * 20_000 + "a]", '"a".' * 20_000 + "a=1", f"a={LONG}", "a=" + "[" * 50_000],
)
def test_toml_that_takes_for_ever_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "workload.toml").write_text(f'schema = "powerprof.workload/1"\n{text}\n')

    def read() -> None:
        with pytest.raises(DataError, match=r"workload\.toml"):
            read_workload(tmp_path)

    assert least_cpu_s(read, 1.0) < 1.0


def test_sql_in_a_workload_may_have_hundreds_of_dots(tmp_path: Path) -> None:
    folder = tmp_path / "dots"
    folder.mkdir()
    dots = ", ".join(f"{number}.5" for number in range(300))
    (folder / "workload.toml").write_text(
        f'schema = "powerprof.workload/1"\nname = "dots"\ntitle = "x"\n[load]\n'
        f'sql = ["SELECT {dots}", """\nSELECT {dots}"""]\n'
        "[conditions.a]\n"
    )
    assert len(read_workload(folder).definition.load.sql) == 2


def test_the_peak_of_this_process_is_small() -> None:
    """What the tests above read left no gigabyte behind: they are refused before they are made."""
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2 << 20
