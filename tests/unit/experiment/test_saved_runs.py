# SPDX-License-Identifier: Apache-2.0
"""Saved runs: their values and differences are listed, different work is refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from powerprof.experiment.options import ExperimentOptions
from powerprof.experiment.records import Comparison, ConditionRecord, LoadOptions, LoadRun, Threat
from powerprof.experiment.saved import _drift_of, _phase_figures, _split, are_runs, compare_saved, read_measurement
from powerprof.experiment.sweep import SweepStore, continue_sweep, restore_options
from powerprof.experiment.sweep_record import Sweep
from powerprof.experiment.trend import _judge_steps
from powerprof.model.attribution import TargetInfo
from powerprof.model.records import (
    Delta,
    Estimate,
    Figures,
    IdleRun,
    RunMetric,
    ServerExits,
    ServerInfo,
    ToolCost,
    ended_by_signal,
)
from powerprof.model.runs import RunStore
from powerprof.report.wording import word_record
from powerprof.statistics.verdicts import compare_unpaired
from powerprof.system.errors import DataError, UsageError
from powerprof.workloads.catalogue import find_workload
from tests.conftest import REPOSITORY
from tests.unit.report.sample_records import attribution, comparison, idle_run


def _run(
    store: RunStore,
    values: list[float],
    *,
    work: str = "abc",
    workload: str = "city",
    kernel: str = "6.1",
    source: str | None = None,
    kind: Any = "measured",
    **options: Any,
) -> str:
    condition = ConditionRecord(name="index", workload=workload, title="", load={"clients": 4}, settings={}, work=work)
    metric = RunMetric(
        name="c0_ms_per_query_server",
        unit="ms",
        kind=kind,
        source=source,
        estimate=Estimate(mean=sum(values) / len(values), low=None, high=None),
        values=list(values),
    )
    run = LoadRun(
        id=None,
        command="run",
        started_at="2026-01-01T00:00:00Z",
        host={"hostname": "one", "kernel": kernel},
        tool=ToolCost(version="1", cpu_s=0.1, wakeups_hz=None),
        phases=[],
        server=ServerInfo(version="MariaDB 10.11.19", private=True),
        condition=condition,
        metrics=[metric],
        options=LoadOptions(primary_metric=metric.name, **options),
    )
    return str(store.save("run", run).id)


def test_different_work_is_refused(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    a, b = _run(store, [1.0] * 3), _run(store, [1.0] * 3, work="other")
    with pytest.raises(UsageError, match="ran different statements or data"):
        compare_saved(a, b, tmp_path, seed=1)
    c = _run(store, [1.0] * 3, workload="prepared")
    with pytest.raises(UsageError, match="ran city and run-0003 ran prepared"):
        compare_saved(a, c, tmp_path, seed=1)


def test_runs_without_metrics_are_refused(tmp_path: Path) -> None:
    """A measurement beside itself, and records that are no measurements of a condition."""
    a = _run(RunStore(tmp_path), [1.0] * 3)
    with pytest.raises(UsageError, match=f"{a} and {a} are the same measurement"):
        compare_saved(a, a, tmp_path, seed=1)
    (tmp_path / "profile-0001").mkdir()
    (tmp_path / "profile-0001/run.json").write_text('{"schema":"powerprof.profile/1"}')
    with pytest.raises(UsageError, match="profile-0001 is of the kind profile"):
        compare_saved("profile-0001", a, tmp_path, seed=1)


def server_counted(counts: list[float]) -> IdleRun:
    """Return an idle run whose server ended these idle periods in the tenths of 16 s."""
    exits = ServerExits(
        count=int(sum(counts)), window_s=16.0, wakeups_hz=Estimate(mean=sum(counts) / 16, low=None, high=None),
        blocks_count=counts,
    )  # fmt: skip
    run = idle_run()
    return replace(
        run, phases=[replace(one, server_exits=exits) if one.name == "clients" else one for one in run.phases]
    )


@pytest.mark.parametrize("counts", [[20.0, 22.0, 18.0, 21.0, 19.0] * 2, [4.0, 5.0, 3.0, 4.0, 4.0] * 2])
def test_two_idle_runs_are_decided_by_the_servers_own_wake_ups(tmp_path: Path, counts: list[float]) -> None:
    """The host of both runs is the same: the count of the server's threads decides."""
    store = RunStore(tmp_path)
    before = [200.0, 210.0, 190.0, 205.0, 195.0] * 2
    a, b = (str(store.save("idle", server_counted(one)).id) for one in (before, counts))
    compared = word_record(compare_saved(a, b, tmp_path, seed=1))
    assert compared.metrics[0].name == compared.verdict.metric == "server_wakeups_hz"
    assert [round(side.mean or 0, 1) for side in (compared.metrics[0].a, compared.metrics[0].b)] == [
        125.0,
        round(sum(counts) / 16, 1),
    ]
    assert compared.metrics[0].verdict == "b_lower"
    assert compared.verdict.text.startswith("The server's wake-ups per second: ")
    assert f"less with {b} than with {a}" in compared.verdict.text
    # Without a trace the host's wake-ups are all that is known.
    plain = [str(store.save("idle", idle_run()).id) for _ in range(2)]
    assert compare_saved(*plain, tmp_path, seed=1).verdict.metric == "wakeups_hz"


def test_two_traced_windows_of_one_program_are_compared(tmp_path: Path) -> None:
    store = RunStore(tmp_path)

    def saved(pid: int, executable: str, parts: list[float]) -> str:
        target = TargetInfo(pid=pid, executable=executable, build_id=None, label=f"mariadbd ({pid})")
        record = replace(attribution(), target=target, window_s=5.0, exits_by_part=parts)
        return str(store.save("attribute", record).id)

    parts = [[50.0, 52.0, 48.0, 51.0, 49.0] * 2, [9.0, 11.0, 10.0, 9.0, 11.0] * 2]
    a, b = (saved(pid, "/usr/sbin/mariadbd", counts) for pid, counts in enumerate(parts, 7))
    compared = compare_saved(a, b, tmp_path, seed=1)
    assert compared.verdict.metric == "server_wakeups_hz"
    assert [side.mean for side in (compared.metrics[0].a, compared.metrics[0].b)] == [100.0, 20.0]
    other = saved(9, "/usr/bin/redis-server", parts[0])
    with pytest.raises(UsageError, match="different work cannot be compared"):
        compare_saved(a, other, tmp_path, seed=1)
    with pytest.raises(DataError, match="without a target"):
        compare_saved(a, saved(9, "/usr/sbin/mariadbd", []), tmp_path, seed=1)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("compare-0001:index", ("compare-0001", "index")),
        ("compare-0001:city:index (MariaDB)", ("compare-0001", "city:index (MariaDB)")),
        ("/tmp/a:b:index", ("/tmp/a:b", "index")),
        ("compare-0001", ("compare-0001", None)),
    ],
)
def test_a_condition_of_another_workload_has_a_colon(name: str, parts: tuple[str, str | None]) -> None:
    assert _split(name) == parts


def test_measured_and_estimated_figures_are_not_compared(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    a, b = _run(store, [1.0] * 3, source="rapl"), _run(store, [1.0] * 3, source="model", kind="estimated")
    with pytest.raises(UsageError, match="no metric in common"):
        compare_saved(a, b, tmp_path, seed=1)


def test_a_run_and_a_condition_do_not_mix(tmp_path: Path) -> None:
    a = _run(RunStore(tmp_path), [1.0] * 3)
    with pytest.raises(UsageError, match="is a saved run and no-index is not"):
        are_runs(a, "no-index", tmp_path)
    assert not are_runs("index", "no-index", tmp_path)


def test_a_condition_that_a_saved_run_does_not_have_is_refused(tmp_path: Path) -> None:
    a, b = _run(RunStore(tmp_path), [1.0] * 3), _run(RunStore(tmp_path), [1.0] * 3)
    with pytest.raises(UsageError, match=f"^{a}:other: {a} has one condition, ") as refused:
        compare_saved(f"{a}:other", b, tmp_path, seed=1)
    assert refused.value.hint == "leave :other out"


def test_missing_runs_are_not_taken_for_conditions(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"^no run 'run-0001' in {tmp_path}$"):
        are_runs("run-0001", "run-0002:index", tmp_path)


def test_a_damaged_run_is_refused(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    a, b = _run(store, [1.0] * 3), _run(store, [1.0] * 3)
    path = tmp_path / b / "run.json"
    path.write_text(path.read_text().replace('"work"', '"w"'))
    with pytest.raises(DataError, match="condition"):
        compare_saved(a, b, tmp_path, seed=1)


def test_a_sweep_is_kept_after_every_point_under_one_id(tmp_path: Path) -> None:
    sweep = Sweep(
        id=None,
        command="sweep",
        started_at="2026-01-01T00:00:00Z",
        workload="city",
        condition=ConditionRecord(name="index", workload="city", title="", load={}, settings={}, work="other"),
        parameter="clients",
        key="load.clients",
        values=[1, 2],
        points=[],
        options={
            "window_s": 0.5,
            "windows_count": 2,
            "seed": 3,
            "energy_source": "none",
            "residency_source": "cpuidle",
        },
        ended=ended_by_signal(True),
    )
    store = SweepStore(tmp_path)
    saved = store.save(sweep)
    assert saved.id == "sweep-0001"
    assert store.save(saved).id == "sweep-0001"
    again = SweepStore(tmp_path).load("sweep-0001")
    assert again == saved
    from powerprof.experiment.bench_options import BenchOptions

    options = restore_options(again, ExperimentOptions())
    assert (options.window_s, options.pairs, options.seed) == (0.5, 2, 3)
    with pytest.raises(UsageError, match="has changed since the sweep was started"):
        continue_sweep(again, find_workload("city"), BenchOptions(), options, save=store.save, say=lambda text: None)


def test_two_conditions_of_one_comparison_keep_their_pairs_their_threats_and_their_doubts(tmp_path: Path) -> None:
    saved = REPOSITORY / "tests/fixtures/saved"
    record = RunStore(saved).load("compare-0001", Comparison)
    again = compare_saved("compare-0001:index", "compare-0001:no-index", saved, record.seed)
    by_name = {metric.name: metric for metric in again.metrics}
    for metric in record.metrics:
        # The same pairs, so the same differences; the intervals of two runs are no shorter than those of pairs.
        found = by_name[metric.name].difference
        assert found.b_minus_a == metric.difference.b_minus_a
        if found.ci95 is not None and metric.difference.ci95 is not None:
            assert found.ci95[0] <= metric.difference.ci95[0] + 1e-9
            assert found.ci95[1] >= metric.difference.ci95[1] - 1e-9
    assert again.threats == record.threats
    turned = compare_saved("compare-0001:no-index", "compare-0001:index", saved, record.seed)
    first, second = again.metrics[0].difference, turned.metrics[0].difference
    assert first.b_minus_a == pytest.approx(-(second.b_minus_a or 0.0))


def test_a_serious_threat_of_a_saved_run_is_still_a_doubt(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    record = RunStore(REPOSITORY / "tests/fixtures/saved").load("compare-0001", Comparison)
    serious = Threat(name="drift", text="idle baseline drift −4 points of C0: too much", serious=True)
    doubted = store.save("compare", msgspec.structs.replace(record, threats=[serious]))
    calm = store.save("compare", msgspec.structs.replace(record, threats=[]))
    found = word_record(compare_saved(f"{calm.id}:index", f"{doubted.id}:index", tmp_path, 1))
    assert found.verdict.doubts == [f"{doubted.id}:index: idle baseline drift −4 points of C0: too much"]
    assert "unpaired" in {threat.name for threat in found.threats}
    assert word_record(compare_saved(f"{calm.id}:index", f"{calm.id}:no-index", tmp_path, 1)).verdict.doubts == []


def saved_side(values: list[float], source: str | None = None) -> Any:
    return SimpleNamespace(metrics=[Figures(name="x", unit="1", kind="measured", values=[*values], source=source)])


def test_a_trend_steps_from_the_older_run_to_the_newer() -> None:
    first, second = [5.1, 5.3, 5.0, 5.2], [9.1, 9.0, 9.4, 9.2]
    none, step, other = _judge_steps([saved_side(first), saved_side(second), saved_side(second, "rapl")], "x")
    expected = compare_unpaired(first, second, seed=1)
    assert none is None and other is None and step is not None and expected.difference_interval is not None
    assert step.difference.b_minus_a == pytest.approx(4.025)
    assert step.difference.percent == pytest.approx(100 * 4.025 / 5.15)
    assert step.difference.ci95 == (expected.difference_interval.low, expected.difference_interval.high)
    far = _judge_steps([saved_side(first), saved_side([90.0, 90.1, 90.2, 90.3])], "x")[1]
    assert far is not None and (far.verdict, far.hint) == ("b_higher", None)


def test_a_saved_comparison_has_the_values_of_each_side(tmp_path: Path) -> None:
    record = comparison()
    name = RunStore(tmp_path).save("compare", replace(record, id=None, system=record.metrics[:1])).id
    for condition, part in (("index", "a"), ("no-index", "b")):
        half = read_measurement(f"{name}:{condition}", tmp_path)
        assert [figures.values for figures in half.metrics] == [getattr(m, part).values for m in record.metrics]
        assert half.system[0].values == getattr(record.metrics[0], part).values
        assert half.condition == getattr(record, part) and half.primary == record.verdict.metric
        assert half.options["offered_hz"] == 40.0


def test_a_saved_idle_run_has_the_values_of_its_windows_and_its_drift() -> None:
    phase = idle_run().phases[0]
    found = {figures.name: figures.values for figures in _phase_figures(phase)}
    assert found["c0_percent"] == [window.c0_percent for window in phase.windows]
    assert found["wakeups_hz"] == [window.wakeups_hz for window in phase.windows]
    assert found["residency_percent:C6"] == [
        next(state.residency_percent for state in window.states if state.name == "C6") for window in phase.windows
    ]
    for mean, low, high, serious in (
        (0.7, 0.2, 1.2, True), (-0.7, -1.2, -0.2, True), (0.4, 0.2, 0.6, False), (0.7, -0.1, 1.5, False)
    ):  # fmt: skip
        drift = Delta(
            metric="c0_percent", from_phase="a", to_phase="b", difference=Estimate(mean=mean, low=low, high=high)
        )
        threats = _drift_of(replace(idle_run(), drift=[replace(drift, metric="wakeups_hz"), drift]))
        assert [(each.name, each.serious, each.values) for each in threats] == (
            [("drift", True, {"points": mean})] if serious else []
        )
