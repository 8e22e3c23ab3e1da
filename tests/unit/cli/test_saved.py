# SPDX-License-Identifier: Apache-2.0
"""Tests for commands that read saved runs, energy and workloads: rows, limits, exit codes and next steps."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from powerprof.attribution import attribute
from powerprof.cli import app, diagnose, idle
from powerprof.cli.parameters import flag, number, time_span, whole_number
from powerprof.diagnosis.evidence import Diagnosis
from powerprof.energy import energy
from powerprof.energy.total import EnergyResult, Total
from powerprof.live import monitor
from powerprof.live.intervals import LiveInterval
from powerprof.model.records import ServerInfo
from powerprof.model.runs import RunInfo, RunStore
from powerprof.report import history
from tests.conftest import REPOSITORY
from tests.unit.queries import test_comparison as compared
from tests.unit.report import sample_records
from tests.unit.report.distinct_records import make


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    monkeypatch.setattr(app, "_put_back_left_behind", lambda: None)
    return RunStore(tmp_path / "runs")


def _run(store: RunStore, line: str) -> int:
    return app.run_app(["--runs-dir", str(store.directory), *line.split()])


def _save_days(store: RunStore, *ages: int) -> None:
    for age in ages:
        started_at = (datetime.now(UTC) - timedelta(days=age, hours=1)).isoformat()
        store.save("run", replace(sample_records.load_run(), id=None, started_at=started_at))


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ("--keep 2", ["run-0003", "run-0004"]),
        ("--keep 0", []),
        ("--older-than 8", ["run-0003", "run-0004"]),
        ("--older-than 200h", ["run-0003", "run-0004"]),
        ("--older-than 8 --keep 3", ["run-0002", "run-0003", "run-0004"]),
    ],
)
def test_prune_removes_what_it_lists_and_only_with_yes(
    options: str, left: list[str], store: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    _save_days(store, 40, 9, 7, 1)
    count = 4 - len(left)
    runs = f"{count} run{'s' if count > 1 else ''}"
    assert _run(store, f"runs prune {options}") == 0
    assert capsys.readouterr().out.endswith(f"{runs} would be removed: add --yes.\n")
    assert len(store.list()) == 4
    assert _run(store, f"runs prune {options} --yes") == 0
    assert capsys.readouterr().out.endswith(f"{runs} removed.\n")
    assert [run.id for run in store.list()] == left


def test_more_rows_are_requested_by_number_or_all(store: RunStore, capsys: pytest.CaptureFixture[str]) -> None:
    record: Any = sample_records.attribution()
    rows = [
        replace(row, count=100 - n, stack=[replace(row.stack[0], function=f"f{n}")])
        for n, row in enumerate(record.wakeups * 6)
    ]
    store.save("attribute", replace(record, id=None, wakeups=rows))
    names, shown = {f"f{n}" for n in range(30)}, {}
    for options in ("", " --top 3", " --all", " --all --top 4"):
        assert _run(store, f"report attribute-0001{options}") == 0
        shown[options] = sum(line.strip() in names for line in capsys.readouterr().out.splitlines())
    assert shown == {"": 20, " --top 3": 3, " --all": 30, " --all --top 4": 4}


def test_all_rows_of_a_trace_are_printed_on_request(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record: Any = sample_records.attribution()
    rows = [replace(row, stack=[replace(row.stack[0], function=f"f{n}")]) for n, row in enumerate(record.wakeups * 6)]
    result = SimpleNamespace(record=replace(record, id=None, wakeups=rows), capture=None)
    monkeypatch.setattr(attribute, "attribute", lambda *_, **__: result)
    shown = []
    for options in ([], ["--top", "3"], ["--all"]):
        assert app.run_app(["attribute", "--system", "--no-save", *options]) == 0
        shown.append(sum(line.strip() in {f"f{n}" for n in range(30)} for line in capsys.readouterr().out.splitlines()))
    assert shown == [20, 3, 30]


def test_energy_on_stdout_is_a_report_or_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    total = Total(source="rapl", domains=["psys"], joules=83.25, watts=33.5, kind="measured")
    monkeypatch.setattr(energy, "measure", lambda *_: EnergyResult(window_s=2.5, meters=[], total=total))
    for line, begins in (
        ("energy", "33.5 W"),
        ("--quiet energy", ""),
        ("energy -o csv:-", "source,"),
        ("energy --json -", "{"),
    ):
        assert app.run_app(line.split()) == 0
        printed = capsys.readouterr().out
        assert printed.startswith(begins) and ("33.5 W over" in printed) == (line == "energy")


def test_a_run_of_unknown_age_is_kept() -> None:
    runs = [RunInfo(f"run-000{at}", Path("x"), None, started_at) for at, started_at in enumerate((None, "x"))]
    assert history.removable_runs(runs, None, 0.0) == []
    assert history.removable_runs(runs, 0, None) == runs


def test_fail_if_worse_has_the_exit_code_4(store: RunStore, capsys: pytest.CaptureFixture[str]) -> None:
    for factor in (1.0, 1.5):
        texts = {"SELECT slow": factor, "SELECT a": 1.0, "SELECT b": 1.01, "SELECT c": 0.99, "SELECT d": 1.0}
        window = compared.window(*(compared.of(text, each_ms) for text, each_ms in texts.items()))
        store.save("queries", replace(window, id=None))
    assert _run(store, "compare queries-0001 queries-0002 --fail-if-worse") == 4
    assert "error: 1 of 5 statements became more expensive" in capsys.readouterr().err
    for line in ("queries-0002 queries-0001 --fail-if-worse", "queries-0001 queries-0002"):
        assert _run(store, f"compare {line}") == 0


def test_a_worse_condition_is_named_in_the_error(store: RunStore, capsys: pytest.CaptureFixture[str]) -> None:
    from powerprof.cli.compare import _judge
    from powerprof.system.errors import WorseError

    with pytest.raises(WorseError, match=r"^no-index is worse than index: no-index uses "):
        _judge(sample_records.comparison())


def test_the_next_step_needs_statements_and_a_process() -> None:
    record: Diagnosis = make(Diagnosis, known=True)
    window = record.evidence.statement_window
    assert window is not None and (diagnose.next_step(record) or "").endswith(f"queries --pid {record.server.pid}")
    empty = replace(record, evidence=replace(record.evidence, statement_window=replace(window, statements=[])))
    away = replace(record, server=replace(record.server, pid=None))
    assert diagnose.next_step(empty) is diagnose.next_step(away) is None
    given = ServerInfo(version="10.11", private=False, pid=42)
    assert (idle.next_step(given) or "").endswith("attribute --pid 42")
    assert idle.next_step(replace(given, private=True)) is None


def test_a_report_is_printed_unless_json_takes_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options, begins in (([], "city: "), (["--json", str(tmp_path / "x")], "city: "), (["--json", "-"], "{")):
        assert app.run_app(["workloads", "city", *options]) == 0
        assert capsys.readouterr().out.startswith(begins), options


def test_the_help_of_an_option_has_its_default_unit_and_limits() -> None:
    rows = {
        "zero": (time_span("--wait", "Wait.", default=0.0, low=0, high=3600), "Wait.  [default: 0 s; 0 to 3600 s]"),
        "days": (time_span("--old", "Old.", low=0, high=36_525, unit="d"), "Old.  [0 to 36,525 d]"),
        "from": (number("--least", "N", "Least.", low=2.5), "Least.  [from 2.5]"),
        "to": (number("--most", "N", "Most.", high=7), "Most.  [to 7]"),
        "count": (whole_number("--count", "N", "Count.", default=0, low=0, high=9), "Count.  [default: 0; 0 to 9]"),
        "flag": (flag("--yes", "Yes."), "Yes."),
    }
    for declared, shown in rows.values():
        assert declared.default_factory.help_row[1] == shown
    days = rows["days"][0].default_factory
    assert [days.value_of(typed, "x") for typed in ("3", "36h", "90m")] == [3.0, 1.5, 0.0625]
    least = rows["from"][0].default_factory
    for typed in ("inf", "-inf", "nan", "2.4"):
        with pytest.raises(Exception, match=rf"--least {typed}: "):
            least.value_of(typed, "x")


def test_watch_ends_after_its_count(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    interval = make(LiveInterval, known=True)

    class Monitor:
        """A host with the same interval for ever."""

        def __init__(self, *_: object) -> None:
            pass

        def __enter__(self) -> Monitor:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def intervals(self) -> Iterator[LiveInterval]:
            for _ in range(9):
                yield interval
            raise AssertionError("the count is ignored")

    monkeypatch.setattr(monitor, "HostMonitor", Monitor)
    assert app.run_app(["watch", "--system", "--json-lines", "--count", "3"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert app.run_app(["watch", "--system", "--plain", "--count", "2"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + 2


def test_the_yearly_sentence_has_the_lines_of_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    saved = REPOSITORY / "tests/fixtures/saved/run-0001"
    assert app.run_app(["report", str(saved), "--price", "0.30EUR", "--grid", "380"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "kWh" in " ".join(lines[-4:]) and max(map(len, lines[-4:])) <= 80
