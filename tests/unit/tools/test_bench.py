# SPDX-License-Identifier: Apache-2.0
"""The bench's own parts: what it makes, what it keeps, and that nothing of a machine is left."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from tools.matrix import cells, page
from tools.matrix.inside import queries, truth
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


class Cursor:
    """A server whose statements take as long as their rounds, in steps of a clock that only it moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr(queries.time, "monotonic", lambda: self.now_s)

    def execute(self, text: str) -> None:
        found = re.search(r"BENCHMARK\((\d+),", text)
        self.now_s += int(found[1]) / 1e6 if found else 0.001


def test_statements_are_compared_with_the_client_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    client = queries.Client(Cursor(monkeypatch))
    for _ in range(30):
        client.execute()
    assert client.heavy_percent() == pytest.approx(75)
    assert sum(client.calls.values()) == 30 and len(client.calls) == 4

    def rows(heavy_s: float = 0.75) -> list[dict[str, Any]]:
        counts = [{"text": f"SELECT ? AS {slot}", "c0_s": 0.0, "calls_count": count} for slot, count in calls.items()]
        long = {"heavy": heavy_s, "light": 0.25}
        return counts + [{"text": f"SELECT … AS {name}", "c0_s": c0_s, "calls_count": 9} for name, c0_s in long.items()]

    calls = dict(client.calls)
    assert queries.compare(rows(), client, counts=True) == []
    # The window may begin and end within a half second.
    first, second, *_, last = calls
    calls |= {first: 1, last: 1}
    assert queries.compare(rows(), client, counts=True) == []
    calls[second] -= 1
    (wrong,) = queries.compare(rows(), client, counts=True)
    assert wrong == f"{second} {calls[second]} of {client.calls[second]}"
    assert queries.compare(rows(), client, counts=False) == []
    (wrong,) = queries.compare(rows(heavy_s=0.25), client, counts=False)
    assert wrong == "the heavy text is 50.0 % of both, by the client 75.0 %"
    # Where the programs for long texts are refused, both texts are one row.
    (wrong,) = queries.compare(rows()[:-2], client, counts=True)
    assert wrong.startswith("not one row for each long text")


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
