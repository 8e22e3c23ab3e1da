# SPDX-License-Identifier: Apache-2.0
"""Sentences about comparisons: the difference between two conditions, its threats, speed and power."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec

from powerprof.experiment.records import Answer, Comparison, ControlRecord, Metric, Threat
from powerprof.experiment.sweep_comparison import SweepComparison, Trend, TrendPoint, TrendStep, Value, judged
from powerprof.experiment.threats import doubts_of
from powerprof.experiment.verdict import SPEED, answered, direction
from powerprof.report.labels import filled

# The sentences of threats to a comparison, and of its control.

WORDS = {
    "steal": "steal {percent:.2g} %",
    "steal_varies": "steal {percent:.2g} %, up to {most_percent:.2g} %",
    "no_frequency": "no frequency data on this host",
    "frequency": "frequency {a_mhz:.0f} and {b_mhz:.0f} MHz",
    "other_load": "other CPU use {a_percent:.1f} % and {b_percent:.1f} % (interrupts included), at most "
    "{above_points:.1f} points above its median",
    "no_baseline": "no idle baseline at both ends",
    "drift": "idle baseline drift {points:+.2f} points of C0",
    "drift_failed": "idle baseline drift {points:+.2f} points of C0: too much",
    "rises": "C0 rises from block to block (Kendall's tau {tau:+.2f})",
    "falls": "C0 falls from block to block (Kendall's tau {tau:+.2f})",
    "saturated": "{condition} completed only {percent:.0f} % of the offered load",
    "repeats": "{count} {count:block|blocks} failed and {count:was|were} repeated",
    "unpaired": "measured at different times: a drift of the host is not cancelled out",
    "interrupted": "{run} was ended early",
    "unfinished": "{run} is not finished",
    "others": "{run}: {percent:.0f} % of the CPUs were used by neither the server nor the client",
    "no_pairs": "no complete pair was measured",
}


def word_threats(threats: Sequence[Threat], names: Mapping[str, str]) -> list[Threat]:
    """Return the threats with their sentences; existing sentences stay. `names` maps each arm to its condition."""
    return [
        threat if threat.text else msgspec.structs.replace(threat, text=_threat(threat, names)) for threat in threats
    ]


def _threat(threat: Threat, names: Mapping[str, str]) -> str:
    values = dict(threat.values)
    if "arm" in values:
        values["condition"] = names.get(str(values["arm"]), "")
    # A saved threat contains its text.
    template = "{text}" if "text" in values else WORDS.get(threat.form or threat.name, threat.name)
    if "run" in values and "{run}" not in template:
        template = f"{{run}}: {template}"
    return filled(template, values).replace(" -", " −")


def of_control(control: ControlRecord) -> str:
    """Return the result of the A/A control."""
    width, difference = control.half_width_percent, control.difference_percent
    if width is None:
        return "the A/A control has too few pairs to judge"
    if control.sound or difference is None:
        return f"A/A ±{width:.2g} %"
    return f"the A/A control differs by {difference:+.2g} %: something else changes, trust no verdict"


_PERCENT_UNIT = " %"


@dataclass(frozen=True)
class _Phrase:
    """A metric in a sentence: its noun, the phrase for N times as much, and the phrase for N % more or less."""

    noun: str
    times: str
    percent: str


def _usage(noun: str, thing: str, verb: str = "uses") -> _Phrase:
    return _Phrase(noun, f"{verb} {{}} times as much {thing} as", f"{verb} {{}} % {{}} {thing} than")


_PHRASES = {
    "c0_ms_per_query_server": _usage("the server's CPU time per query", "server CPU time per query"),
    "c0_ms_per_query": _usage("the CPU time per query", "CPU time per query"),
    "c0_ms_per_query_net": _usage("the CPU time per query, net of idle", "CPU time per query, net of idle,"),
    "joules_per_query": _usage("the energy per query", "energy per query"),
    "joules_per_query_net": _usage("the energy per query, net of idle", "energy per query, net of idle,"),
    "joules_per_execution": _usage("the energy of an execution", "energy"),
    "joules_per_execution_net": _usage("the energy of an execution, net of idle", "energy, net of idle,"),
    "cpu_s_per_execution": _usage("the CPU time of an execution", "CPU time"),
    "time_s_per_execution": _Phrase("the time of an execution", "takes {} times as long as", "takes {} % {} time than"),
    "wakeups_per_query": _Phrase(
        "the wake-ups per query",
        "wakes a CPU {} times as often per query as",
        "wakes a CPU {} % {} often per query than",
    ),
    "latency_p95_ms": _Phrase("the p95 latency", "has {} times the p95 latency of", "has {} % {} p95 latency than"),
    "c0_percent": _Phrase(
        "the time in C0", "keeps the CPUs in C0 {} times as long as", "keeps the CPUs in C0 for {} % {} time than"
    ),
    "wakeups_hz": _Phrase(
        "the wake-ups per second", "wakes the CPUs {} times as often as", "wakes the CPUs {} % {} often than"
    ),
    "watts": _usage("the power", "power", "draws"),
}


def words(name: str) -> str:
    """Return the metric's noun for a sentence, or its name if it has no noun."""
    return _PHRASES[name].noun if name in _PHRASES else name


def of_comparison(record: Comparison) -> Comparison:
    """Return the record with its answer, control and threats in words; existing sentences stay."""
    a, b = record.a.name, record.b.name
    control, verdict = record.control, record.verdict
    if control is not None and not control.text:
        control = msgspec.structs.replace(control, text=of_control(control))
    threats = word_threats(record.threats, {"a": a, "b": b})
    if not verdict.text:
        doubted = doubts_of(threats, control, record.metrics, verdict.metric)
        doubts = [threat.text for threat in word_threats(doubted, {})]
        verdict = msgspec.structs.replace(worded(verdict, record.metrics, a, b), doubts=doubts)
    return msgspec.structs.replace(record, verdict=verdict, threats=threats, control=control)


def worded(answer: Answer, metrics: Sequence[Metric], a: str, b: str) -> Answer:
    """Return the answer with its sentences."""
    asked = answer.asked or answer.metric
    parts = answered(metrics, asked)
    if parts.chosen is None:
        text = f"No answer: {words(asked)} was not measured." if asked else "No answer: nothing was measured."
        return msgspec.structs.replace(answer, text=text)
    family = len(metrics) - 1
    return msgspec.structs.replace(
        answer,
        text=_sentence(parts.chosen, a, b),
        ground=_sentence(parts.ground, a, b, family) if parts.ground else None,
        speed=_verdict_text(parts.speed, a, b) if parts.speed else None,
        power=_verdict_text(parts.power, a, b) if parts.power else None,
    )


def _sentence(metric: Metric, a: str, b: str, family: int = 0) -> str:
    """Return the difference in a metric. `family` is the number of other metrics that were judged with it."""
    what = words(metric.name)
    difference, interval = metric.difference.b_minus_a, metric.difference.ci95
    if difference is None or interval is None:
        return f"Too few pairs to judge whether {a} and {b} differ in {what}."
    scale, unit, figure = _shown_scale(metric, difference, interval[0])
    difference, (low, high) = scale * difference, (scale * end for end in interval)
    level = f"95 %{', estimated' if metric.kind == 'estimated' else ''}"
    if metric.verdict == "inconclusive":
        reach = f"{_signed(figure(low))} to {_signed(figure(high))}, {level}"
        if low > 0 or high < 0:
            why = f" after correcting for {family} comparisons" if family > 1 else ""
            shown = f"{_signed(figure(difference))}{unit} ({reach})"
            return f"Inconclusive{why} whether {a} and {b} differ in {what}: {shown}."
        return f"No measurable difference between {a} and {b} in {what}: {_less_than(metric)} ({reach})."
    least, most = sorted((abs(low), abs(high)))
    within = f"{figure(least)} – {figure(most)}{unit}, {level}"
    more = "more" if difference > 0 else "less"
    if unit != _PERCENT_UNIT:
        return (
            f"{what[:1].upper()}{what[1:]}: {figure(abs(difference))}{unit} {more} with {b} than with {a} ({within})."
        )
    phrase = _PHRASES.get(metric.name) or _Phrase(what, f"has {{}} times the {what} of", f"has {{}} % {{}} {what} than")
    ratio = metric.ratio
    if ratio is not None and ratio.ci95 is not None and (ratio.b_over_a >= 1.5 or ratio.b_over_a <= 2 / 3):
        first, second, flip = (b, a, False) if ratio.b_over_a > 1 else (a, b, True)
        value = 1 / ratio.b_over_a if flip else ratio.b_over_a
        times = sorted(1 / end if flip else end for end in ratio.ci95)
        return (
            f"{first} {phrase.times.format(_three(value))} {second} ({_three(times[0])} – {_three(times[1])}, {level})."
        )
    if difference < 0 and most > 100:
        # With few unpaired windows A's mean does not bound the difference, but no use is negative.
        within = f"at least {figure(least)} %, {level}"
    return f"{b} {phrase.percent.format(figure(abs(difference)), more)} {a} ({within})."


# An interval wider than the figure is no bound.
NO_BOUND_PERCENT = 100.0


def _less_than(metric: Metric) -> str | None:
    """Return the bound of a difference in either direction, such as `less than 9.5 %`; None without an interval."""
    difference, ends = metric.difference.b_minus_a, metric.difference.ci95
    if difference is None or ends is None:
        return None
    most = max(abs(end) for end in ends)
    if not most:
        return "every window read the same"  # the meter's step is unknown, so the hidden difference is unknown too
    scale, unit, figure = _shown_scale(metric, difference, ends[0])
    # In its own unit a bound beyond the figure is useful, because the figure may be 0.
    widest = NO_BOUND_PERCENT if unit == _PERCENT_UNIT else 10 * NO_BOUND_PERCENT
    if metric.a.mean and 100 * most / abs(metric.a.mean) > widest:
        return "the interval is too wide for a bound"
    return f"less than {figure(scale * most)}{unit}"


def _shown_scale(metric: Metric, apart: float, low: float) -> tuple[float, str, Callable[[float], str]]:
    """Return the factor, the unit and the format of a shown difference.

    The unit is percent of A. It is the metric's own unit if A may be 0, for example net of idle, or if the windows
    allow a negative figure.
    """
    mean, interval = metric.a.mean, metric.a.ci95
    nought = metric.name.endswith("_net") and interval is not None and interval[0] <= 0
    if not mean or nought or (low if metric.verdict == "inconclusive" else apart) < -abs(mean):
        return 1.0, {"1": "", "1/s": "/s"}.get(metric.unit, f" {metric.unit}"), _three
    return 100 / abs(mean), _PERCENT_UNIT, lambda value: f"{value:,.1f}"


def _signed(figure: str) -> str:
    return f"−{figure[1:]}" if figure.startswith("-") else f"+{figure}"


def _three(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


_BASIS_NAMES = {
    "time_to_solution_s": "time to solution",
    "latency_p95_ms": "p95 latency",
    "time_s_per_execution": "time of an execution",
    "watts": "watts",
    "c0_percent": "time in C0",
}


def _verdict_text(metric: Metric, a: str, b: str) -> str:
    lower, higher, subject = (
        ("faster", "slower", "speed") if metric.name in SPEED else ("lower in power", "higher in power", "power")
    )
    basis = f"{_BASIS_NAMES[metric.name]}{', estimated' if metric.kind == 'estimated' else ''}"
    if metric.verdict != "inconclusive":
        return f"{b} is {lower if metric.verdict == 'b_lower' else higher} ({basis})"
    bound = _less_than(metric)
    if bound is None:
        return f"too few pairs to judge whether {a} and {b} differ in {subject} ({basis})"
    return f"no measurable difference in {subject} between {a} and {b}: {bound} ({basis}, 95 %)"


# The sentences about several runs: two sweeps, and the trend of a condition.


def of_sweeps(record: SweepComparison) -> SweepComparison:
    """Return the record with its answer and its threats in words."""
    threats = word_threats(record.threats, {})
    return msgspec.structs.replace(record, text=record.text or _sweeps(record), threats=threats)


def of_trend(record: Trend) -> Trend:
    """Return the record with its answer in words."""
    return msgspec.structs.replace(record, text=record.text or _trend(record))


def _sweeps(record: SweepComparison) -> str:
    """Return where B diverges from A, with the largest difference."""
    points = judged(record)
    a, b, parameter = record.a.name, record.b.name, record.parameter
    if not points:
        return "No answer: the sweeps have no metric in common."
    what = "queries/s" if record.metric == "queries_hz" else words(record.metric)
    parts = []
    for way in ("higher", "lower"):
        moved = [point for point in points if point.parted and (_change(point.metric) > 0) == (way == "higher")]
        if not moved:
            continue
        most = max(moved, key=lambda point: abs(_change(point.metric)))
        where = _place_text([point.value for point in moved], [point.value for point in points], parameter)
        at = f" at {most.value}" if len(moved) > 1 else ""
        verb = "are" if what.endswith("/s") else "is"
        parts.append(f"{where} {what} {verb} {way} with {b} than with {a}: {_percent_change(most.metric)}{at}")
    if not parts:
        where = f"between {a} and {b} in {what} at any of {len(points)} values of {parameter}"
        bounds = [_less_than_percent(point.metric) for point in points]
        known = [bound for bound in bounds if bound is not None]
        if len(known) < len(bounds):
            return f"Inconclusive {where}: how large a difference may be is unknown at {len(bounds) - len(known)}."
        if max(known) > NO_BOUND_PERCENT:
            return f"Inconclusive {where}: the intervals are too wide for a bound."
        return f"No measurable difference {where}: less than {max(known):,.1f} % (95 % at each)."
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}."


def _place_text(points: Sequence[Value], every: Sequence[Value], parameter: str) -> str:
    """Return `at every value of clients`, `from clients 16 on` or `at clients 4 and 64`."""
    if len(points) == len(every) > 1:
        return f"at every value of {parameter}"
    if len(points) > 1 and list(points) == list(every[-len(points) :]):
        return f"from {parameter} {points[0]} on"
    *most, last = [str(value) for value in points]
    return f"at {parameter} {', '.join(most)} and {last}" if most else f"at {parameter} {last}"


def _change(metric: Metric) -> float:
    return metric.difference.b_minus_a or 0.0


def _less_than_percent(metric: Metric) -> float | None:
    """Return the largest possible difference in either direction, in percent of A; None if unknown."""
    ends, base = metric.difference.ci95, metric.a.mean
    return None if ends is None or not base else 100 * max(abs(end) for end in ends) / abs(base)


def _percent_change(metric: Metric) -> str:
    """Return a difference such as `+43.1 % (38.2 to 48.0, 95 %)`."""
    percent, interval, base = metric.difference.percent, metric.difference.ci95, metric.a.mean
    if percent is None or not base:
        return "from nothing"
    ends = (
        ""
        if interval is None
        else " (" + " to ".join(_series_signed(100 * end / abs(base)) for end in interval) + ", 95 %)"
    )
    return f"{_series_signed(percent)} %{ends}"


def _series_signed(percent: float) -> str:
    return f"{percent:+,.1f}".replace("-", "−")


def _trend(record: Trend) -> str:
    """Return the largest significant step between neighbouring runs, or the bound of the steps."""
    condition, points = record.condition, record.points
    same = condition.workload in ("command", condition.name)
    name = condition.name if same else f"{condition.workload}:{condition.name}"
    if len(points) == 1:
        return f"There is one run of {name}: nothing to compare it with."
    every = [(before, after, after.step) for before, after in pairwise(points)]
    steps = [
        (before, after, step)
        for before, after, step in every
        if step is not None and step.verdict != "inconclusive" and step.difference.percent is not None
    ]
    metric = words(record.metric)
    if not steps:
        none = f"{name}, {len(points)} runs: no measurable step in {metric} between neighbouring runs"
        bounds = [_step_less_than_percent(record.metric, before, step) for before, _, step in every]
        known_bounds = [bound for bound in bounds if bound is not None]
        if len(known_bounds) < len(bounds):
            return f"{none}; how large one may be is unknown at {len(bounds) - len(known_bounds)} of {len(bounds)}."
        if max(known_bounds) > NO_BOUND_PERCENT:
            return f"{none}; the intervals are too wide for a bound."
        return f"{none}: less than {max(known_bounds):,.1f} % (95 % at each)."
    before, after, step = max(steps, key=lambda step: abs(step[2].difference.percent or 0.0))
    percent = step.difference.percent or 0.0
    direction_text = "rose" if percent > 0 else "fell"
    others = f"; {len(steps) - 1} more steps are significant" if len(steps) > 1 else ""
    return (
        f"{name}, {len(points)} runs: {metric} {direction_text} by {abs(percent):,.1f} % "
        f"({direction(record.metric, step.verdict)}) from {_run_name(before)} to {_run_name(after)}{others}."
    )


def _step_less_than_percent(name: str, before: TrendPoint, step: TrendStep | None) -> float | None:
    """Return the largest possible step in either direction, in percent of the earlier run; None if unknown."""
    base = next((metric.estimate.mean for metric in before.metrics if metric.name == name), None)
    ends = step.difference.ci95 if step is not None else None
    return None if ends is None or not base else 100 * max(abs(end) for end in ends) / abs(base)


def _run_name(point: TrendPoint) -> str:
    return point.run + (f" [{', '.join(point.labels)}]" if point.labels else "")
