# SPDX-License-Identifier: Apache-2.0
"""The bench's own parts: what it makes, what it keeps, and that nothing of a machine is left."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tools.matrix import cells, page
from tools.matrix.inside import truth
from tools.matrix.outcome import Outcome, Step, load, outcome, save
from tools.matrix.running import Ended, Running

CELL = cells.CELLS[0]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


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
