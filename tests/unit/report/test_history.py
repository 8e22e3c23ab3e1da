# SPDX-License-Identifier: Apache-2.0
"""Saved runs as a history: told with their answers, labelled, removed, compared with the one before, as a trend."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from powerprof.experiment.records import LoadRun
from powerprof.experiment.trend import build_trend
from powerprof.model.records import Estimate
from powerprof.model.runs import RunInfo, RunStore
from powerprof.report import history
from powerprof.report.wording import word_record
from powerprof.system.errors import UsageError
from tests.unit.report.sample_records import attribution, comparison, idle_run, load_run, sweep

NOW = datetime(2026, 3, 10, 12, tzinfo=UTC)
_SPREAD = (0.99, 1.0, 1.01, 1.0, 0.995, 1.005)


def _info(number: int, started_at: str, *labels: str, target: str = "city:index", command: str = "run") -> RunInfo:
    name = f"{command}-{number:04d}"
    return RunInfo(name, Path(name), "powerprof.run/1", started_at, labels=labels, target=target, answer="Yes.")


def _run(factor: float, day: int) -> LoadRun:
    """The sample run with other figures and another day."""
    metrics = [
        replace(
            metric,
            values=[factor * one for one in _SPREAD],
            estimate=Estimate(mean=factor, low=0.99 * factor, high=1.01 * factor),
        )
        for metric in load_run().metrics
    ]
    options = replace(load_run().options, primary_metric=metrics[0].name)
    return replace(load_run(), id=None, metrics=metrics, options=options, started_at=f"2026-03-{day:02d}T10:00:00Z")


def test_list_entry_has_target_and_answer() -> None:
    said = {record.command: history.about(record) for record in (idle_run(), load_run(), comparison(4), sweep())}
    assert said["run"].target == "city:index"
    assert said["compare"].target == "index / no-index"
    assert said["sweep"].target == "city:index"
    assert said["idle"].target == "MariaDB 10.11.19"
    assert (said["idle"].answer or "").startswith("An idle server with 16 silent connections costs")
    assert history.about(attribution()).target == "mariadbd"


def test_ages_have_one_unit() -> None:
    for text, said in (
        ("2026-03-10T11:59:30Z", "30 s"),
        ("2026-03-10T09:00:00Z", "3 h"),
        ("2026-02-26T12:00:00.123Z", "11 d"),
        ("2023-01-01T00:00:00Z", "3 y"),
        ("2027-01-01T00:00:00Z", "now"),
        ("yesterday", "?"),
    ):
        assert history.age(text, NOW) == said


def test_list_has_two_lines_per_run() -> None:
    runs = [_info(1, "2026-03-09T12:00:00Z", "v1"), _info(2, "2026-03-10T11:00:00Z", target="evil\nrun-0003  1 d")]
    found = history.lines(runs, Path("/r"), 80, NOW)
    assert found[0].startswith("run-0001  1 d  city:index") and found[0].endswith("[v1]")
    assert found[1] == "    Yes."
    assert len(found) == 4
    assert history.lines([], Path("/r"), 80) == ["No runs in /r."]


def test_pruning_keeps_newest_recent_and_labelled_runs() -> None:
    runs = [
        _info(1, "2026-01-01T00:00:00Z"),
        _info(2, "2026-01-02T00:00:00Z", "v1"),
        _info(3, "2026-03-09T00:00:00Z"),
        _info(4, "2026-03-10T00:00:00Z"),
        _info(1, "2026-01-01T00:00:00Z", command="idle"),
    ]
    assert [run.id for run in history.removable_runs(runs, 1, None, NOW)] == ["run-0001", "run-0003"]
    assert [run.id for run in history.removable_runs(runs, None, 30, NOW)] == ["run-0001", "idle-0001"]
    assert [run.id for run in history.removable_runs(runs, 1, 30, NOW)] == ["run-0001"]
    assert [run.id for run in history.removable_runs(runs, 0, None, NOW)] == [
        *("run-0001", "run-0003", "run-0004"),
        "idle-0001",
    ]
    with pytest.raises(UsageError, match="--keep N or --older-than"):
        history.removable_runs(runs, None, None, NOW)


def test_equal_runs_have_no_step(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    for day in (1, 2, 3):
        store.save("run", _run(1.0, day))
    shape = (
        r".*, 3 runs: no measurable step in the server's CPU time per query between neighbouring runs: "
        r"less than [\d.]+ % of .* \(95 % interval at each\)\."
    )
    assert re.fullmatch(shape, word_record(build_trend("run-0003", tmp_path)).text)
    other = replace(_run(1.0, 4), condition=replace(load_run().condition, name="no-index", work="other"))
    store.save("run", other)
    assert (
        word_record(build_trend("run-0004", tmp_path)).text
        == "Only one run of city:no-index: no comparison is possible."
    )
