# SPDX-License-Identifier: Apache-2.0
"""`powerprof report` writes files: whole or not at all, one of them to stdout, and says what it cannot do."""

from __future__ import annotations

import gzip
import os
import stat
from pathlib import Path

import msgspec
import pytest

from powerprof.report.files import write_output
from powerprof.system.errors import PowerprofError
from tests.conftest import Cli
from tests.unit.report.sample_pages import traced_comparison
from tests.unit.report.sample_records import attribution, comparison, idle_run


@pytest.fixture
def saved(tmp_path: Path) -> dict[str, str]:
    """Records as files that someone sent."""
    found = {}
    for record in (comparison(), idle_run(), attribution()):
        path = tmp_path / f"{record.id}.json"
        path.write_bytes(msgspec.json.encode(record))
        found[record.command] = str(path)
    return found


def test_every_kind_of_file_in_one_command(powerprof_cli: Cli, saved: dict[str, str], tmp_path: Path) -> None:
    suffixes = (".html", ".md", ".csv", ".flame.html", ".folded", ".pb.gz", ".otlp")
    options = [word for suffix in suffixes for word in ("-o", str(tmp_path / f"out{suffix}"))]
    done = powerprof_cli(["report", saved["attribute"], *options])
    assert (done.code, done.out, done.err) == (0, "", "")
    assert (tmp_path / "out.html").read_text().startswith("<!doctype html>")
    assert "wakes the CPUs 6.8 times a second" in (tmp_path / "out.md").read_text()
    assert gzip.decompress((tmp_path / "out.pb.gz").read_bytes())
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".powerprof-")]


def test_dash_writes_only_the_file_to_stdout(powerprof_cli: Cli, saved: dict[str, str]) -> None:
    done = powerprof_cli(["report", saved["attribute"], "-o", "folded:-"])
    assert done.code == 0
    assert sum(int(line.rpartition(" ")[2]) for line in done.out.splitlines()) == 68


def test_a_page_of_a_comparison_has_the_stacks_of_its_traced_windows(powerprof_cli: Cli, tmp_path: Path) -> None:
    record, page = tmp_path / "traced.json", tmp_path / "report.html"
    record.write_bytes(msgspec.json.encode(traced_comparison()))
    done = powerprof_cli(["report", str(record), "-o", str(page)])
    assert (done.code, done.err) == (0, "")
    text = page.read_text()
    assert text.count('<figure class="flame"') == 3 and "Difference, no-index − index" in text


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("idle", ["-o", "folded:-"], "-o folded:-: "),
        ("attribute", ["-o", "perfetto:-"], "a .perfetto.json file needs the capture saved with a run"),
        ("idle", ["-o", "html:-", "-o", "csv:-"], "only one file can be stdout"),
        ("idle", ["-o", "/nowhere/x.html"], "-o /nowhere/x.html: no such directory /nowhere"),
        ("idle", ["-o", "html:/"], "-o html:/ is a directory"),
        (
            "idle",
            ["-o", "html:/tmp/same", "-o", "csv:/tmp/same"],
            "-o html:/tmp/same and -o csv:/tmp/same name the same",
        ),
    ],
)
def test_error_is_one_line_with_a_hint(
    powerprof_cli: Cli, saved: dict[str, str], kind: str, options: list[str], message: str
) -> None:
    done = powerprof_cli(["report", saved[kind], *options])
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: {message}") and len(done.err.splitlines()) <= 2


def test_refused_file_leaves_others_unwritten(powerprof_cli: Cli, saved: dict[str, str], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = powerprof_cli(["report", saved["idle"], "-o", str(page), "-o", str(tmp_path / "p.pb.gz")])
    assert done.code == 2 and not page.exists()


def test_old_file_is_replaced_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    link = tmp_path / "link.html"
    link.symlink_to(path)
    before = os.umask(0o027)
    try:
        write_output(str(link), b"new")
    finally:
        os.umask(before)
    assert path.read_bytes() == b"new" and link.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["link.html", "report.html"]


def test_device_is_written_to_and_not_replaced() -> None:
    write_output("/dev/null", b"x")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_full_disk_is_an_error_without_a_partial_file() -> None:
    with pytest.raises(PowerprofError, match="cannot write /dev/full"):
        write_output("/dev/full", b"x")
    with pytest.raises(PowerprofError, match=r"cannot write /proc/self/report\.html"):
        write_output("/proc/self/report.html", b"x")
