# SPDX-License-Identifier: Apache-2.0
"""The bench's own parts: what it makes, what it keeps, and that nothing of a machine is left."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tools.matrix import cache, cells, page
from tools.matrix.acpi import power_table
from tools.matrix.initramfs import cpio
from tools.matrix.inside import measuring, truth
from tools.matrix.inside.steps import SAID_ALL
from tools.matrix.outcome import Outcome, Step, load, outcome, save
from tools.matrix.running import Ended, Running

CELL = cells.CELLS[0]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_every_cell_has_a_name_of_its_own_and_steps_that_exist() -> None:
    names = [cell.name for cell in cells.CELLS]
    assert len(names) == len(set(names)) >= 12
    assert {step for cell in cells.CELLS for step in cell.steps} <= measuring.STEPS.keys()
    assert all(cell.cpus % cell.sockets == 0 for cell in cells.CELLS)
    quick = cells.chosen([], quick=True)
    assert 0 < len(quick) < len(cells.CELLS)
    with pytest.raises(ValueError, match=r"no cell 2\.4"):
        cells.chosen(["2.4"], quick=False)


def test_what_is_made_is_whole_or_absent_and_replaces_what_an_older_recipe_made() -> None:
    calls = []

    def make(place: Path) -> None:
        calls.append(place)
        (place / "file").write_text("x")

    first = cache.made("thing-1", make)
    assert cache.made("thing-1", make) == first
    assert len(calls) == 1

    def fail(place: Path) -> None:
        (place / "half").write_text("")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        cache.made("thing-2", fail)
    kept = {entry.name for entry in cache.folder().iterdir() if entry.is_dir()}
    assert kept == {"thing-1"}
    cache.made("other-thing-1", make)
    cache.made("thing-2", make)
    assert {entry.name for entry in cache.folder().iterdir() if entry.is_dir()} == {"thing-2", "other-thing-1"}


def test_a_digest_depends_on_every_part_and_on_where_they_part() -> None:
    assert len({cache.digest("ab", "c"), cache.digest("a", "bc"), cache.digest("abc"), cache.digest("ab", b"d")}) == 4


def test_an_initramfs_names_folders_before_their_files_and_pads_to_four_bytes() -> None:
    packed = cpio([("a/b/file", 0o100755, b"12345"), ("a/other", 0o100644, b"")])
    entries, at = [], 0
    while True:
        assert packed[at : at + 6] == b"070701" and at % 4 == 0
        fields = [int(packed[at + 6 + 8 * i : at + 14 + 8 * i], 16) for i in range(13)]
        mode, size, name_size = fields[1], fields[6], fields[11]
        name = packed[at + 110 : at + 109 + name_size].decode()
        begin = at + 110 + name_size + -(110 + name_size) % 4
        if name == "TRAILER!!!":
            break
        entries.append((name, oct(mode), packed[begin : begin + size]))
        at = begin + size + -size % 4
    assert entries == [
        ("a", "0o40755", b""),
        ("a/b", "0o40755", b""),
        ("a/b/file", "0o100755", b"12345"),
        ("a/other", "0o100644", b""),
    ]


def test_a_cell_that_hangs_is_killed_and_its_folder_goes(tmp_path: Path) -> None:
    places = []
    said = '{"step": "machine", "ok": true, "seconds": 1}'

    def command(place: Path) -> list[str]:
        places.append(place)
        return ["sh", "-c", f"echo '{said}' > {place}/results; exec sleep 60"]

    with Running(CELL, command, 0.3) as running:
        assert not running.is_over()
        while not running.is_over():
            time.sleep(0.05)
        ended = running.ended()
    assert ended.why_ended == "still running after 0.3 s"
    assert [one["step"] for one in ended.results] == ["machine"]
    assert not places[0].exists()
    found = outcome(CELL, ended)
    assert not found.is_green
    assert found.reasons() == ["still running after 0.3 s", f"never reached: {', '.join(CELL.steps)}"]


def test_an_exception_beside_a_running_cell_ends_it() -> None:
    pids = []
    with (
        pytest.raises(KeyboardInterrupt),
        Running(CELL, lambda place: ["sh", "-c", f"echo $$ > {place}/results; exec sleep 60"], 60) as running,
    ):
        while not running._text("results"):
            time.sleep(0.02)
        pids.append(int(running._text("results")))
        raise KeyboardInterrupt
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_a_machine_that_has_said_all_and_does_not_switch_itself_off_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.matrix.running._POWER_OFF_S", 0.2)
    said = SAID_ALL.strip()
    with Running(CELL, lambda place: ["sh", "-c", f"echo '{said}' > {place}/results; exec sleep 60"], 60) as running:
        while not running.is_over():
            time.sleep(0.05)
        ended = running.ended()
    assert ended.why_ended is None
    assert ended.seconds < 30


def test_the_program_s_own_count_is_what_a_rate_is_held_against() -> None:
    own = {"poll": 190, "futex": 70}
    assert truth.compare({"poll": 186, "futex": 71}, own) == (2.11, [])
    assert truth.compare({"poll": 180, "futex": 70}, own) == (
        5.26,
        ["wakings found of the program's own count: poll 180 of 190"],
    )
    assert truth.compare({"poll": 0, "futex": 0}, {"poll": 0, "futex": 0})[0] is None


def test_outcomes_are_kept_by_cell_and_the_page_says_why_one_is_red(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "PAGE", tmp_path / "machines.md")
    monkeypatch.setattr(page, "KEPT", tmp_path / "machines.jsonl")
    done = [{"step": name, "ok": True, "seconds": 1.0, "facts": {}} for name in ("machine", *CELL.steps)]
    green = outcome(CELL, Ended(done, "", None, 12.3))
    assert green.is_green
    red = Outcome(
        cell=cells.CELLS[1].name,
        date="2026-01-02",
        why_ended=None,
        seconds=5,
        steps=[Step(step="doctor", ok=False, seconds=1, why="tracing missing: no BTF")],
        missing=[],
    )
    rates = {"1": 33.77, "8": 33.89, "64": 30.14}
    swept = Outcome(
        cell="6.1-sweep",
        date="2026-01-03",
        why_ended=None,
        seconds=5.0,
        steps=[Step(step="sweep", ok=True, seconds=1.0, facts={"queries_hz": rates})],
        missing=[],
    )
    page.keep([red])
    page.keep([green, swept])
    assert set(load(page.KEPT)) == {green.cell, red.cell, "6.1-sweep"}
    text = page.PAGE.read_text()
    assert "| **red** 2026-01-02, not run with these programs |" in text
    assert f"| green {green.date} |" in text
    assert green.cell not in page.list_older() and red.cell in page.list_older()
    assert f"* **{red.cell}**: doctor: tracing missing: no BTF" in text
    assert "instructions; 33.8, 33.9 and 30.1 transactions/s with 1, 8 and 64 clients |" in text
    save(tmp_path / "other.jsonl", load(page.KEPT))
    assert (tmp_path / "other.jsonl").read_text() == page.KEPT.read_text()


@pytest.mark.parametrize(("cpus", "states", "frequencies"), [(1, 1, False), (16, 3, True), (64, 2, False)])
def test_the_power_table_sums_to_nothing_and_names_every_cpu(cpus: int, states: int, frequencies: bool) -> None:
    table = power_table(cpus, states, frequencies=frequencies)
    assert sum(table) % 256 == 0
    assert int.from_bytes(table[4:8], "little") == len(table)
    at = 36
    for cpu in range(cpus):
        # ScopeOp and its length in one or two bytes, which counts itself and all that follows in the scope.
        wide = table[at + 1] >> 6
        length = table[at + 1] & 0xF | table[at + 2] << 4 if wide else table[at + 1]
        scope = table[at : at + 1 + length]
        assert scope[0] == 0x10 and wide <= 1
        assert scope[2 + wide :].startswith(b"\\\x2f\x03_SB_CPUS" + f"C{cpu:03X}".encode() + b"\x08_CST")
        assert (b"_PSS" in scope and b"_PCT" in scope) is frequencies
        assert scope.count(b"\x82\x0c\x00\x7f") == states  # one register of fixed hardware each
        at += len(scope)
    assert at == len(table)
