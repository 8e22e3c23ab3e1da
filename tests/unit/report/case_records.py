# SPDX-License-Identifier: Apache-2.0
"""Records and values that select the branches of sentences, each with odd figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from powerprof.attribution.offcpu import OffCpuProfile, WakerRow
from powerprof.cure.records import Cure, CureVerdict, Remedy
from powerprof.diagnosis.evidence import Diagnosis, Evidence, Finding, StatementCpu, StatementWindow
from powerprof.energy.total import EnergyResult, Total
from powerprof.experiment.phases import compare_phases
from powerprof.experiment.records import ControlRecord, Difference, Metric, Side, Threat
from powerprof.experiment.study import StudyRow
from powerprof.experiment.trend import Trend, TrendPoint, TrendStep
from powerprof.measure.means import make_phase
from powerprof.model.attribution import Attribution, Wakeup
from powerprof.model.deep_idle import DeepIdle
from powerprof.model.records import (
    Cause,
    Conservation,
    EnergyReading,
    Estimate,
    EstimateRange,
    IdleOptions,
    IdleRun,
    ServerExits,
    Window,
)
from powerprof.queries.comparison import QueriesComparison
from powerprof.queries.records import Queries
from powerprof.report import balance, comparison_words, flame, queries, stacks
from powerprof.report.comparison_words import word_threats
from powerprof.report.exports import render_csv
from powerprof.report.functions import answer_of as answer_of_functions
from powerprof.report.html.timeline import lanes
from powerprof.report.kinds import lines_of
from powerprof.report.screen import ScreenView, draw_bars, scroll_rows
from powerprof.report.study import findings_table, today
from powerprof.report.suggestions import suggest_remedies
from powerprof.report.table import Places
from powerprof.report.timeline import TimelineExit
from powerprof.report.wording import word_record
from tests.unit.report.distinct_records import make, make_kind

Cases = Iterator[tuple[str, str]]
_SPAN = EstimateRange(
    idle_watts=41.5, idle_low_watts=12.25, idle_high_watts=96.75,
    slope_watts=63.5, slope_low_watts=37.25, slope_high_watts=88.5, odds_low=0.35, odds_high=2.75,
)  # fmt: skip


def cases() -> Cases:
    """Yield the name and the text of each case."""
    for make_cases in (_idle, _attribution, _comparison, _cure, _diagnosis, _energy, _queries, _drawings, _others):
        yield from make_cases()


def _first_lines(record: Any, count: int = 3) -> str:
    return "\n".join(lines_of(record, 400)[:count])


# `powerprof idle`.

_Phase = tuple[str, tuple[float, ...], tuple[float, ...], float]
_QUIET: tuple[_Phase, ...] = (
    ("baseline", (2.25, 2.5, 2.375), (38.5, 39.25, 38.0), 41.5),
    ("server", (3.75, 4.0, 3.875), (52.5, 53.75, 51.25), 46.25),
    ("clients", (4.25, 4.625, 4.5), (57.5, 58.25, 56.0), 49.75),
    ("baseline-after", (2.375, 2.25, 2.5), (38.25, 39.5, 38.75), 41.25),
)


def _idle_run(phases: Sequence[_Phase] = _QUIET, *, wide: bool = True, exits: Any = None, **more: Any) -> IdleRun:
    made = []
    for name, c0_percents, wakings, watts in phases:
        windows = [
            make(
                Window, known=False, c0_percent=c0, wakeups_hz=woken, window_s=8.5, cpus=3, notes=[], achieved=[],
                energy=[EnergyReading(
                    source="model", domain="cpus", scope="model", kind="estimated",
                    joules=8.5 * (watts + c0), watts=watts + c0,
                    low_watts=watts * (0.25 if wide else 0.75), high_watts=watts * 1.75, model="EPYC", range=_SPAN,
                )],
            )
            for c0, woken in zip(c0_percents, wakings, strict=True)
        ]  # fmt: skip
        phase = replace(make_phase(name, windows), energy=windows[0].energy)
        counted = (exits or {}).get(name)
        made.append(phase if counted is None else replace(phase, server_exits=counted))
    by_name = {phase.name: phase for phase in made}
    pairs = [
        (a, b) for a, b in (("baseline", "server"), ("baseline", "clients"), ("server", "clients")) if b in by_name
    ]
    after = by_name.get("baseline-after")
    run: IdleRun = make(
        IdleRun, known=True, command="idle", schema="powerprof.run/1", phases=made, notes=[], ended=None,
        deltas=[delta for a, b in pairs if a in by_name for delta in compare_phases(by_name[a], by_name[b])],
        drift=compare_phases(by_name["baseline"], after) if after and "baseline" in by_name else [],
        options=IdleOptions(clients_count=7, duration_s=8.5, repeat_count=3),
        **{"statements_hz": 0.125, **more},
    )  # fmt: skip
    return run


def _exits(mean: float, half: float, woken: float, most: float) -> ServerExits:
    return ServerExits(
        count=round(mean * 16.5), window_s=16.5, wakings_hz=woken, most_woken="thread/sql/main", most_woken_hz=most,
        wakeups_hz=Estimate(mean=mean, low=mean - half, high=mean + half),
    )  # fmt: skip


def _idle() -> Cases:
    yield "idle, quiet", "\n".join(lines_of(_idle_run(), 400))
    yield "idle, narrow power", "\n".join(lines_of(_idle_run(wide=False), 400))
    drifted = (*_QUIET[:3], ("baseline-after", (4.0, 4.125, 3.875), (39.25, 38.5, 39.0), 44.25))
    yield "idle, drift", "\n".join(lines_of(_idle_run(drifted), 400))
    noisy = tuple((name, (c0[0], 3 * c0[1], c0[2] / 2), (w[0] / 2, w[1], 3 * w[2]), p) for name, c0, w, p in _QUIET)
    yield "idle, noise", _first_lines(_idle_run(noisy))
    loud = tuple((name, (20.5, 61.25, 1.5), (900.5, 30.25, 2500.75), power) for name, _, _, power in _QUIET)
    yield "idle, useless", _first_lines(_idle_run(loud))
    # C0 of up to 30 points says nothing about wake-ups, whose interval is narrow.
    mixed = tuple(
        (name, (2.5, 2.625, 2.75), (3000.5 + n, 3002.25 + n, 2999.0), p) for n, (name, _, _, p) in enumerate(_QUIET)
    )
    yield "idle, many wake-ups", _first_lines(_idle_run(mixed))
    less = (("baseline", (9.25, 9.5, 9.375), (88.5, 89.25, 88.0), 41.5), *_QUIET[1:])
    yield "idle, less", _first_lines(_idle_run(less))
    yield "idle, given server", "\n".join(lines_of(_idle_run(_QUIET[1:3]), 400)[:8])
    single = tuple((name, c0[:1], woken[:1], power) for name, c0, woken, power in _QUIET)
    yield "idle, single windows", _first_lines(_idle_run(single))
    yield "idle, one phase", _first_lines(_idle_run(_QUIET[:1]))
    alone, connected = _exits(4.625, 0.375, 9.25, 3.5), _exits(11.875, 0.625, 17.75, 8.25)
    for label, exits in (
        ("adds", {"server": alone, "clients": connected}),
        ("fewer", {"server": connected, "clients": alone}),
        ("none", {"server": alone, "clients": _exits(4.75, 0.25, 9.5, 3.625)}),
        ("unsure", {"server": alone, "clients": _exits(5.125, 2.25, 9.5, 3.625)}),
        ("connections only", {"clients": connected}),
    ):
        yield f"idle, counted, {label}", _first_lines(_idle_run(exits=exits))
    yield (
        "idle, counted, single windows",
        _first_lines(_idle_run(single, exits={"server": alone, "clients": connected})),
    )
    yield "idle, counted, drift", _first_lines(_idle_run(drifted, exits={"server": alone, "clients": connected}))
    busy = (("baseline", (98.5, 99.25, 98.75), (3.5, 4.25, 3.0), 141.5), *_QUIET[1:])
    yield "idle, busy before", _first_lines(_idle_run(busy, exits={"server": alone, "clients": connected}))
    throughout = tuple((name, (98.5, 99.25, 98.75), (3.5, 4.25, 3.0), power) for name, _, _, power in _QUIET[1:3])
    yield "idle, busy throughout", _first_lines(_idle_run(throughout))
    asleep = _exits(0.0, 0.1875, 0.5, 0.25)
    yield "idle, asleep", _first_lines(_idle_run(exits={"server": asleep, "clients": asleep}))
    yield "idle, statements", _first_lines(_idle_run(statements_hz=18.375))


# `powerprof attribute`.


def _attribution() -> Cases:
    kind = "powerprof.attribution/1"
    record: Attribution = make_kind(kind, known=True)
    unknown_deep = replace(make_kind(kind, known=False), deep=make(DeepIdle, known=False))
    deep = make(DeepIdle, known=True)
    governor = replace(deep.governor, kernel_above_count=None, is_complete=False)
    uncounted = replace(record, deep=replace(deep, governor=governor))
    yield "attribute, kernel's misses unknown", next(line for line in lines_of(uncounted, 500) if "governor" in line)
    yield "attribute, deep, unknown", "\n".join(lines_of(unknown_deep, 300))
    first = record.wakeups[0]
    many = [
        replace(
            first, count=300 - 7 * number, rate_hz=30.125 - 0.75 * number, wakings_count=301 + number,
            thread=replace(first.thread, tid=70 + number, server_name=f"thread/t{number}", process=None),
            stack=[replace(first.stack[0], function=f"f{number}", source=None)], waker=None, period_ms=10.5 + number,
            stack_complete=True, origin="own_timer", mechanism="timer", detail=None,
        )
        for number in range(27)
    ]  # fmt: skip
    plain = replace(record, deep=None, notes=[], ended=None, wakings_without_exit=[], other_causes=[])
    plain = replace(plain, wakeups=many, target=replace(record.target, system=False), window_s=10.5)
    for top in (None, 2):
        yield f"attribute, {top} of many", "\n".join(lines_of(plain, 200, top=top))
    yield "attribute, groups", "\n".join(lines_of(plain, 200, by="thread", top=3))
    twins = [
        replace(many[0], count=count, rate_hz=count / 10.5, thread=replace(many[0].thread, tid=tid), **changes)
        for tid, count, changes in (
            (71, 61, {}),
            (72, 23, {"origin": "device", "detail": "virtio0"}),
            (71, 9, {"origin": "other_thread", "waker": first.waker}),
            (71, 3, {"origin": "runnable"}),
        )
    ]
    merged = replace(plain, wakeups=[*twins, many[5]])
    yield "attribute, merged", "\n".join(lines_of(merged, 200))
    sleepers = [
        replace(many[number], period_ms=period, c0_ms=3.5, stack=[replace(first.stack[0], function="poll")])
        for number, period in ((0, 25.5), (3, 40.25), (6, 60.75))
    ]
    yield "attribute, suggestions", "\n".join(suggest_remedies(replace(plain, wakeups=sleepers)))
    stack_set = stacks.attribution_stacks(record)
    yield (
        "attribute, stacks",
        "\n".join(map(repr, (stack_set.stacks, stack_set.c0_ms, stack_set.owners, stack_set.states))),
    )
    on_cpu = stacks.profile_stacks(make_kind("powerprof.oncpu/1", known=True))
    yield "profile, stacks", "\n".join(map(repr, (on_cpu.stacks, on_cpu.c0_ms, on_cpu.owners)))
    counts = record.conservation
    for label, changes in (
        ("lost", {"unknown_count": 0}),
        ("unknown", {"lost_count": 0}),
        ("all", {"unknown_count": 0, "lost_count": 0}),
        ("blind", {"idle_exits_count": 0, "idle_percent": 97.25}),
        ("blind, load unknown", {"idle_exits_count": 0, "idle_percent": None}),
        ("busy", {"idle_exits_count": 0, "idle_percent": 0.25}),
        ("tracepoint", {"cpuidle_usage_delta_count": None}),
        ("unchecked", {"cpuidle_usage_delta_count": None, "checked_against": None}),
    ):
        changed: Conservation = replace(counts, **changes)
        yield f"balance, {label}", f"{balance.describe_accounting(changed)} {balance.describe_balance(changed)}"


# `powerprof compare` and trends.


def _metric(
    mean: float, ends: tuple[float, float] | None, verdict: Any, *, name: str = "watts", unit: str = "W"
) -> Metric:
    middle = None if ends is None else (ends[0] + ends[1]) / 2
    percent = None if middle is None or not mean else 100 * middle / mean
    return Metric(
        name=name, unit=unit, kind="measured", verdict=verdict, minimum_detectable_percent=None, ratio=None,
        a=Side(mean=mean, ci95=None, values=[]), b=Side(mean=mean + (middle or 0.0), ci95=None, values=[]),
        difference=Difference(b_minus_a=middle, ci95=ends, percent=percent),
    )  # fmt: skip


def _comparison() -> Cases:
    threats = [
        Threat(name=name, values={"points": -3.125, "tau": -0.625, "percent": 7.25, "arm": "b", "run": "run-0007"})
        for name in ("drift", "drift_failed", "falls", "saturated", "interrupted", "steal")
    ]
    worded = word_threats(threats, {"a": "index", "b": "no-index"})
    yield "threats", "\n".join(threat.text for threat in worded)
    for sound in (True, False):
        control = ControlRecord(
            kind="run", pairs_count=7, sound=sound, half_width_percent=2.75, difference_percent=-4.25
        )
        yield f"control, {sound}", comparison_words.control_text(control)
    signed = _metric(-2.5, (-4.25, -1.75), "b_lower", name="c0_ms_per_query_net", unit="ms")
    falls = _metric(40.5, (-13.25, -4.75), "b_lower")
    answers = [comparison_words.word_answer(_answer(each.name), [each], "a", "b").text for each in (signed, falls)]
    yield "answers", "\n".join(answers)
    steps = (None, (2.5, 6.75, "b_higher"), (-31.5, -22.25, "b_lower"), (-0.5, 1.25, "inconclusive"))
    points = []
    for number, step in enumerate(steps):
        point: TrendPoint = make(TrendPoint, known=True, labels=[f"v{number}"], differences=[], run=f"run-000{number}")
        ends = step and (step[0], step[1])
        middle = sum(ends) / 2 if ends else 0.0
        judged = step and make(
            TrendStep, known=True, verdict=step[2],
            difference=Difference(b_minus_a=middle, ci95=ends, percent=2.5 * middle),
        )  # fmt: skip
        points.append(replace(point, step=judged))
    trend: Trend = make(Trend, known=True, points=points, notes=[])
    yield "trend", "\n".join(lines_of(word_record(trend), 200))
    undecided = replace(trend, points=[points[0], replace(points[3], labels=[])])
    yield "trend, undecided", _first_lines(word_record(undecided))
    sweeps = make_kind("powerprof.sweepcomparison/1", known=True)
    open_points = [
        replace(point, parted=False, metrics=[_metric(mean, ends, "inconclusive", name="queries_hz", unit="1/s")])
        for point, mean, ends in zip(sweeps.points, (412.5, 873.25), ((-3.5, 9.25), (-17.5, 4.25)), strict=False)
    ]
    yield "sweeps, undecided", _first_lines(word_record(replace(sweeps, points=open_points)))
    falling = [
        replace(point, parted=True, metrics=[_metric(812.5, ends, verdict, name="queries_hz", unit="1/s")])
        for point, ends, verdict in zip(
            sweeps.points, ((-93.5, -79.25), (-17.5, -4.25)), ("b_lower", "b_lower"), strict=False
        )
    ]
    yield "sweeps, lower", _first_lines(word_record(replace(sweeps, points=falling)))


def _answer(metric: str) -> Any:
    from powerprof.experiment.records import Answer

    return Answer(metric=metric)


# `powerprof cure` and `powerprof diagnose`.


def _cure() -> Cases:
    record: Cure = make_kind("powerprof.cure/1", known=True)
    record = replace(record, ended=None, notes=[])
    host: Remedy = replace(record.remedy, kind="host", name="latency-limit", from_value="0 µs", to_value="50 µs")
    slack: Remedy = replace(record.remedy, kind="timer_slack", from_value="50000", to_value="7000000")
    own = _metric(97.25, (-83.5, -71.75), "b_lower", name="thread_wakings_hz", unit="1/s")
    delay = _metric(1.625, (-0.0625, 0.1875), "inconclusive", name="latency_p95_ms", unit="ms")
    lag = _metric(2.5, (-0.25, 0.375), "inconclusive", name="replica_delay_ms", unit="ms")
    verdict = CureVerdict(metric="thread_wakings_hz", max_p95_percent=12.5)
    watts = _metric(41.5, (-3.75, -1.25), "b_lower")
    hurt = replace(verdict, hurts="commits", hurts_from_ms=1.625, hurts_to_ms=2.375, guard_percentile=99)
    base = replace(record, remedy=slack, metrics=[own, delay, lag], verdict=verdict)
    higher = _metric(9.75, (71.5, 83.25), "b_higher", name="thread_wakings_hz", unit="1/s")
    unsure = replace(_metric(9.75, (-1.5, 3.25), "inconclusive", name="thread_wakings_hz", unit="1/s"),
                     minimum_detectable_percent=37.5)  # fmt: skip
    named = {
        "lower": base,
        "higher": replace(base, metrics=[higher, delay]),
        "inconclusive": replace(base, metrics=[unsure]),
        "hurts": replace(base, verdict=hurt),
        "host": replace(base, remedy=host, metrics=[watts, delay], verdict=replace(verdict, metric="watts")),
        "no saving": replace(base, verdict=replace(verdict, untried="no_saving")),
        "same value": replace(base, verdict=replace(verdict, untried="same_value")),
        "not restored": replace(base, reverted=False, read_back="9000000"),
        "restored": replace(base, reverted=True, read_back="50000"),
        "ended": replace(base, reverted=None),
    }
    for label, each in named.items():
        yield f"cure, {label}", "\n".join(lines_of(word_record(each), 300))


def _diagnosis() -> Cases:
    record: Diagnosis = make_kind("powerprof.diagnosis/1", known=True)
    window = StatementWindow(
        window_s=2.5, method="probes", percent=61.5,
        statements=[
            make(StatementCpu, known=True, percent=30.25, calls_hz=None, text="SELECT a", account="x@h"),
            make(StatementCpu, known=True, percent=17.75, calls_hz=7.25, text="SELECT b", account=None),
        ],
    )  # fmt: skip
    evidence: Evidence = replace(record.evidence, statement_window=window, exits_hz=4.375, notes=[])

    def fault(percent: float, rate_hz: float, account: str) -> Finding:
        return Finding(
            rule="table_poller", severity="fault", text=f"{account} is busy", evidence=[], remedy=[],
            rate_hz=rate_hz, percent=percent, account=account,
        )  # fmt: skip

    for label, findings in (
        ("two clients", [fault(30.25, 7.5, "x@h"), fault(17.75, 3.5, "y@h")]),
        ("one account", [fault(30.25, 7.5, "x@h"), fault(17.75, 3.5, "x@h")]),
        ("few calls", [fault(30.25, 7.5, "x@h"), fault(17.75, 1.5, "y@h")]),
        ("none", []),
    ):
        changed = replace(record, evidence=evidence, findings=findings, notes=[])
        yield f"diagnose, {label}", "\n".join(lines_of(changed, 120, everything=True))


# Energy, queries, and others.


def _energy() -> Cases:
    package = EnergyReading(
        source="rapl", domain="package-0", scope="package", kind="measured", joules=83.25, watts=33.5
    )
    core = replace(package, domain="core", joules=41.5, watts=16.75, contained_in="package-0")
    psys = replace(package, domain="psys", joules=None, watts=None)
    total = Total(source="rapl", domains=["package-0", "package-1"], joules=83.25, watts=33.5, kind="measured")
    meters = [package, core, psys]
    for label, changes in (
        ("whole", {}),
        ("bounds", {"low_watts": 31.25, "high_watts": 36.75}),
        ("wide", {"low_watts": 4.25, "high_watts": 96.75, "kind": "estimated"}),
        ("reason", {"watts": None, "joules": None, "reason": "two meters overlap"}),
        ("unknown", {"watts": None, "joules": None}),
    ):
        result = EnergyResult(
            window_s=2.5, meters=meters, total=replace(total, **changes), notes=["doubt: a", "doubt: b"]
        )
        yield f"energy, {label}", "\n".join([*lines_of(result, 120), *render_csv(result).splitlines()])
    bounded = replace(core, watts=None, low_watts=12.25, high_watts=47.5)
    unsure = EnergyResult(window_s=2.5, meters=[bounded], total=replace(total, watts=None, joules=None), notes=[])
    yield "energy, possible", "\n".join(lines_of(unsure, 120))


def _queries() -> Cases:
    record: Queries = make_kind("powerprof.queries/1", known=True)
    third = replace(record.statements[0], id="third", text="SELECT third", c0_percent=3.375)
    record = replace(record, statements=[*record.statements, third], notes=[], ended=None)
    step = record.statements[0].plan[0]
    yield "plan", queries.plan_text([replace(step, table=None, access=None, key=None, rows_count=None), step])
    probed = make_kind("powerprof.functions/1", known=True)
    single = [replace(probed, functions=probed.functions[:count]) for count in (0, 1, 2)]
    yield "functions", "\n".join(map(answer_of_functions, single))
    yield "queries, first", "\n".join(lines_of(record, 120, top=1))
    compared: QueriesComparison = replace(make_kind("powerprof.queries-comparison/1", known=True), common_ratio=1.0)
    first, second = compared.statements
    for label, statements in (
        ("cheaper", [replace(first, became="cheaper", ratio=0.375, low=0.25, high=0.625)]),
        ("new", [replace(first, became="new", a=None, ratio=None, low=None, high=None)]),
        ("chance", [replace(first, became="inconclusive", low=1.125, high=1.5),
                    replace(second, became="inconclusive", low=0.75, high=1.25),
                    replace(second, id="few", became="inconclusive", low=None, high=None)]),
        ("nothing", [replace(second, became="inconclusive", low=0.75, high=1.25)]),
    ):  # fmt: skip
        yield f"statements, {label}", "\n".join(lines_of(replace(compared, statements=statements), 200))


def _drawings() -> Cases:
    from powerprof.report.html import svg
    from powerprof.report.html.flames import draw_flame
    from powerprof.report.html.intervals import DrawnInterval, interval_axis, interval_row

    exits = [
        TimelineExit(0, 1_000_000, 3_500_000, 3_700_123, "C6", "timer", "a", "t"),
        TimelineExit(1, 2_250_000, 4_125_000, None, "C1", "no_ipi", "b", None),
    ]
    drawn = lanes(exits)
    assert drawn is not None
    yield "timeline, data", f"{drawn.data} {drawn.whole_s}"
    before, after = [(("m", "gone"), 6.5), (("m", "same", "x"), 2.25)], [(("m", "same"), 2.75), (("m", "new"), 4.125)]
    graphs = (flame.build_flame(before, unit="ms"), flame.build_flame_difference(before, after, unit="ms"))
    for graph in graphs:
        view = draw_flame(graph, "title", {"same": "m.so"})
        assert view is not None
        yield "flame", str(view.boxes)
    points = [svg.SeriesPoint("1", 0.00125, 0.001, 0.0015), svg.SeriesPoint("2", 0.00375, None, None)]
    yield "series", str(svg.draw_series([points, points[::-1]], "J", "energy"))
    for clear in (True, False):
        near = [DrawnInterval(12.5, 3.25, 21.75, clear), DrawnInterval(-40.5, -55.25, -25.75, True)]
        far = [*near, DrawnInterval(412.5, 303.25, 521.75, True)]
        for intervals in (near, far):
            axis = interval_axis(intervals)
            yield "intervals", "\n".join(str(interval_row(axis, each, "x")) for each in intervals)


def _titles(page: str) -> list[str]:
    import re

    return re.findall(r"<title>([^<]*% of one CPU)</title>", page)


def _others() -> Cases:
    sleeps: OffCpuProfile = make_kind("powerprof.offcpu/1", known=True)
    waker: WakerRow = sleeps.wakers[0]
    rows = [replace(waker, tid=70 + n, percent=percent) for n, percent in enumerate((21.25, 13.5, 17.75))]
    other = replace(waker, waker_tid=999, waker_comm="other", percent=31.5)
    yield "offcpu, wakers", _first_lines(replace(sleeps, wakers=[*rows, other]), 1)
    for count in (3, 8):
        yield f"bars, {count}", draw_bars([1.0, 2.5, None, 4.0, 0.0, 3.25, 7.5, 8.0, 16.0], count)
    shown = scroll_rows(
        [3.5, 7.25, 11.125, 17.75, 29.5], ScreenView(chosen=3), 3,
        row=lambda value: f"  {value}", details=lambda value: [], rest=lambda left: f"{sum(left)}",
    )  # fmt: skip
    yield "scrolled", "\n".join(shown)
    study = make_kind("powerprof.study/1", known=True)
    row: StudyRow = study.rows[0]
    same = [
        replace(row, outcome="inconclusive", expected=expected, difference=Estimate(mean=1.25, low=low, high=high))
        for expected, low, high in (
            ("same", -1.5, 4.25),
            ("higher", -1.5, 4.25),
            ("higher", 0.5, 2.25),
            (None, -3.5, 1.5),
        )
    ]
    record = replace(study, rows=same)
    table = findings_table(record, Places(record))
    yield "study", "\n".join([*lines_of(record, 200)[:1], *map(today, table.rows)])
    sweep = make_kind("powerprof.sweep/1", known=True)
    point = sweep.points[0]
    disks = [replace(disk, of_server=bool(at)) for at, disk in enumerate(point.os[0].disks)]
    both = [replace(disk, of_server=True) for disk in disks]
    points = [
        replace(point, value=value, os=[replace(point.os[0], disks=each)], paces=[], on_cpu=[])
        for value, each in ((1, disks), (2, both), (3, disks[:1]))
    ]
    yield "sweep, disks", "\n".join(lines_of(replace(sweep, points=points, baseline=[]), 200))
    causes = [
        make(Cause, known=True, thread="t", process="p", pid=7, mechanism=mechanism, wakeups_hz=rate, percent=percent,
             period_ms=period, c0_ms=c0)
        for mechanism, rate, percent, period, c0 in (
            ("timer", 6.25, 31.5, 160.5, 2.75), ("ipi", 1.125, 9.25, None, None), ("device", 0.375, 3.125, 99.5, 1.5))
    ]  # fmt: skip
    idle_run = _idle_run(_QUIET[:2])
    phases = [replace(phase, causes=causes, conservation=make(Conservation, known=True)) for phase in idle_run.phases]
    yield "causes of one thread", "\n".join(lines_of(replace(idle_run, phases=phases), 120)[8:])
    limited = make_kind("powerprof.run/1 residency", known=True)
    limits = replace(limited, host={"idle_limits": ["a latency limit of 7 µs forbids C6"], "idle_driver": "intel_idle"})
    yield "residency, limits", "\n".join(lines_of(limits, 120)[:12])
    calls = make_kind("powerprof.syscalls/1", known=True)
    files = [
        replace(row, kind="file", write_bytes=size, read_bytes=3 * size)
        for row, size in zip(calls.files * 2, (4_321, 7_654_321, 9_876_543_210, 12), strict=True)
    ]  # fmt: skip
    yield "syscalls, bytes", "\n".join(lines_of(replace(calls, files=files), 120)[:12])
    wakeup: Wakeup = make_kind("powerprof.attribution/1", known=True).wakeups[0]
    yield "thread", repr(wakeup.thread.label)
