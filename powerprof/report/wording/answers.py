# SPDX-License-Identifier: Apache-2.0
"""The sentences of comparisons: how two conditions differ, what the answer rests on, speed and power."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from powerprof.experiment.judge.answer import SPEED, answered
from powerprof.experiment.judge.threats import doubts_of
from powerprof.experiment.records import Answer, Comparison, Metric
from powerprof.report.wording import threats

_PERCENT = " %"


@dataclass(frozen=True)
class _Phrase:
    """A metric in a sentence: its name, how N times as much of it is written, and N % more or less."""

    noun: str
    times: str
    percent: str


def _used(noun: str, thing: str, verb: str = "uses") -> _Phrase:
    return _Phrase(noun, f"{verb} {{}} times as much {thing} as", f"{verb} {{}} % {{}} {thing} than")


_WORDS = {
    "c0_ms_per_query_server": _used("the server's CPU time per query", "server CPU time per query"),
    "c0_ms_per_query": _used("the CPU time per query", "CPU time per query"),
    "c0_ms_per_query_net": _used("the CPU time per query, net of idle", "CPU time per query, net of idle,"),
    "joules_per_query": _used("the energy per query", "energy per query"),
    "joules_per_query_net": _used("the energy per query, net of idle", "energy per query, net of idle,"),
    "joules_per_execution": _used("the energy of an execution", "energy"),
    "joules_per_execution_net": _used("the energy of an execution, net of idle", "energy, net of idle,"),
    "cpu_s_per_execution": _used("the CPU time of an execution", "CPU time"),
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
    "watts": _used("the power", "power", "draws"),
}


def words(name: str) -> str:
    """A metric in words, for a sentence."""
    return _WORDS[name].noun if name in _WORDS else name


def of_comparison(record: Comparison) -> Comparison:
    """The record with its answer, its control and its threats in words; what has its words already keeps them."""
    a, b = record.a.name, record.b.name
    control, verdict = record.control, record.verdict
    if control is not None and not control.text:
        control = msgspec.structs.replace(control, text=threats.of_control(control))
    found = threats.worded(record.threats, {"a": a, "b": b})
    if not verdict.text:
        doubted = doubts_of(found, control, record.metrics, verdict.metric)
        doubts = [threat.text for threat in threats.worded(doubted, {})]
        verdict = msgspec.structs.replace(worded(verdict, record.metrics, a, b), doubts=doubts)
    return msgspec.structs.replace(record, verdict=verdict, threats=found, control=control)


def worded(answer: Answer, metrics: Sequence[Metric], a: str, b: str) -> Answer:
    """The answer with its sentences."""
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
        speed=_apart(parts.speed, a, b) if parts.speed else None,
        power=_apart(parts.power, a, b) if parts.power else None,
    )


def _sentence(metric: Metric, a: str, b: str, family: int = 0) -> str:
    """`family`: with how many other metrics it was judged, each of which may differ by chance."""
    what = words(metric.name)
    difference, interval = metric.difference.b_minus_a, metric.difference.ci95
    if difference is None or interval is None:
        return f"Too few pairs to judge whether {a} and {b} differ in {what}."
    scale, unit, figure = _scale(metric, difference, interval[0])
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
    if unit != _PERCENT:
        return (
            f"{what[:1].upper()}{what[1:]}: {figure(abs(difference))}{unit} {more} with {b} than with {a} ({within})."
        )
    phrase = _WORDS.get(metric.name) or _Phrase(what, f"has {{}} times the {what} of", f"has {{}} % {{}} {what} than")
    ratio = metric.ratio
    if ratio is not None and ratio.ci95 is not None and (ratio.b_over_a >= 1.5 or ratio.b_over_a <= 2 / 3):
        first, second, flip = (b, a, False) if ratio.b_over_a > 1 else (a, b, True)
        value = 1 / ratio.b_over_a if flip else ratio.b_over_a
        times = sorted(1 / end if flip else end for end in ratio.ci95)
        return (
            f"{first} {phrase.times.format(_three(value))} {second} ({_three(times[0])} – {_three(times[1])}, {level})."
        )
    if difference < 0 and most > 100:
        # Few windows that are no pairs: A's mean does not bound the difference. Nobody uses less than nothing.
        within = f"at least {figure(least)} %, {level}"
    return f"{b} {phrase.percent.format(figure(abs(difference)), more)} {a} ({within})."


# An interval wider than the figure itself bounds nothing.
NO_BOUND_PERCENT = 100.0


def _less_than(metric: Metric) -> str | None:
    """`less than 9.5 %`: the most that a difference may be, either way; None without an interval."""
    difference, ends = metric.difference.b_minus_a, metric.difference.ci95
    if difference is None or ends is None:
        return None
    most = max(abs(end) for end in ends)
    if not most:
        return "every window read the same"  # its step is unknown, and so is what could hide in it
    scale, unit, figure = _scale(metric, difference, ends[0])
    # In its own unit a bound beyond the figure still says something, where the figure may be nought.
    widest = NO_BOUND_PERCENT if unit == _PERCENT else 10 * NO_BOUND_PERCENT
    if metric.a.mean and 100 * most / abs(metric.a.mean) > widest:
        return "the interval is too wide for a bound"
    return f"less than {figure(scale * most)}{unit}"


def _scale(metric: Metric, apart: float, low: float) -> tuple[float, str, Callable[[float], str]]:
    """What a difference is multiplied by to be shown, its unit, and the form of such a figure.

    Percent of A; its own unit where A may be nought, of which nothing is a share: net of idle, and where the windows
    leave room for less than nothing.
    """
    mean, interval = metric.a.mean, metric.a.ci95
    nought = metric.name.endswith("_net") and interval is not None and interval[0] <= 0
    if not mean or nought or (low if metric.verdict == "inconclusive" else apart) < -abs(mean):
        return 1.0, {"1": "", "1/s": "/s"}.get(metric.unit, f" {metric.unit}"), _three
    return 100 / abs(mean), _PERCENT, lambda value: f"{value:,.1f}"


def _signed(figure: str) -> str:
    return f"−{figure[1:]}" if figure.startswith("-") else f"+{figure}"


def _three(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


_NAMES_APART = {
    "time_to_solution_s": "time to solution",
    "latency_p95_ms": "p95 latency",
    "time_s_per_execution": "time of an execution",
    "watts": "watts",
    "c0_percent": "time in C0",
}


def _apart(metric: Metric, a: str, b: str) -> str:
    lower, higher, what = (
        ("faster", "slower", "speed") if metric.name in SPEED else ("lower in power", "higher in power", "power")
    )
    basis = f"{_NAMES_APART[metric.name]}{', estimated' if metric.kind == 'estimated' else ''}"
    if metric.verdict != "inconclusive":
        return f"{b} is {lower if metric.verdict == 'b_lower' else higher} ({basis})"
    bound = _less_than(metric)
    if bound is None:
        return f"too few pairs to judge whether {a} and {b} differ in {what} ({basis})"
    return f"no measurable difference in {what} between {a} and {b}: {bound} ({basis}, 95 %)"
