# SPDX-License-Identifier: Apache-2.0
"""Pure: the answer of a comparison in sentences: what is asked first, what it rests on, which way is better."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from powerprof.experiment.records import Answer, Metric
from powerprof.statistics import Verdict

ENERGY = "joules_per_query"
# The CPU time that stands for energy where no meter is → that energy.
_STANDS_FOR = {
    "c0_ms_per_query_server": ENERGY,
    "c0_ms_per_query": ENERGY,
    "c0_ms_per_query_net": ENERGY,
    "cpu_s_per_execution": "joules_per_execution",
}

_PERCENT = " %"

# More of these is better.
_MORE = ("queries_hz",)
# Neither is better by itself: time in one idle state says nothing without the others, and these tell what was done.
_NEITHER = (
    "residency_percent",
    "storm_raged_percent",
    "storm_counter_hz",
    "connections_hz",
    "commits_hz",
    "relay_log_bytes_hz",
)


def headline(asked: str, measured: Collection[str]) -> str:
    """The metric of the answer: energy where a meter has `measured` it and the workload asks for the CPU time that
    stands for it, else what the workload asks for. Chosen by what there is, never by how it came out."""
    energy = _STANDS_FOR.get(asked)
    return energy if energy is not None and energy in measured else asked


def sense(name: str) -> Literal["less", "more"] | None:
    """Which is better of a metric; None where neither is."""
    what = name.partition(":")[0]
    if what in _NEITHER:
        return None
    return "more" if what in _MORE else "less"


def direction(name: str, verdict: Verdict) -> str:
    """B beside A: better, worse or inconclusive; higher or lower where neither is better."""
    if verdict == "inconclusive":
        return verdict
    good = sense(name)
    if good is None:
        return verdict.removeprefix("b_")
    return "better" if (verdict == "b_lower") == (good == "less") else "worse"


def is_worse(metrics: Sequence[Metric], primary: str | None) -> bool:
    """True where the primary metric says that B is worse, beyond its interval."""
    metric = next((metric for metric in metrics if metric.name == primary), None)
    return metric is not None and direction(metric.name, metric.verdict) == "worse"


@dataclass(frozen=True)
class _Said:
    """A metric in a sentence: its name, how N times as much of it is said, and how N % more or less."""

    noun: str
    times: str
    percent: str


def _used(noun: str, thing: str, verb: str = "uses") -> _Said:
    return _Said(noun, f"{verb} {{}} times as much {thing} as", f"{verb} {{}} % {{}} {thing} than")


_WORDS = {
    "c0_ms_per_query_server": _used("the server's CPU time per query", "server CPU time per query"),
    "c0_ms_per_query": _used("the CPU time per query", "CPU time per query"),
    "c0_ms_per_query_net": _used("the CPU time per query, net of idle", "CPU time per query, net of idle,"),
    "joules_per_query": _used("the energy per query", "energy per query"),
    "joules_per_query_net": _used("the energy per query, net of idle", "energy per query, net of idle,"),
    "joules_per_execution": _used("the energy of an execution", "energy"),
    "joules_per_execution_net": _used("the energy of an execution, net of idle", "energy, net of idle,"),
    "cpu_s_per_execution": _used("the CPU time of an execution", "CPU time"),
    "time_s_per_execution": _Said("the time of an execution", "takes {} times as long as", "takes {} % {} time than"),
    "wakeups_per_query": _Said(
        "the wake-ups per query",
        "wakes a CPU {} times as often per query as",
        "wakes a CPU {} % {} often per query than",
    ),
    "latency_p95_ms": _Said("the p95 latency", "has {} times the p95 latency of", "has {} % {} p95 latency than"),
    "c0_percent": _Said(
        "the time in C0", "keeps the CPUs in C0 {} times as long as", "keeps the CPUs in C0 for {} % {} time than"
    ),
    "wakeups_hz": _Said(
        "the wake-ups per second", "wakes the CPUs {} times as often as", "wakes the CPUs {} % {} often than"
    ),
    "watts": _used("the power", "power", "draws"),
}


def words(name: str) -> str:
    """A metric in words, for a sentence."""
    return _WORDS[name].noun if name in _WORDS else name


def answer(metrics: Sequence[Metric], primary: str, a: str, b: str) -> Answer:
    """The answer in one sentence, what it rests on or leads to, and what it says of speed and of power: one does not
    follow from the other."""
    named = {metric.name: metric for metric in metrics}
    chosen = named.get(primary)
    if chosen is None:
        return Answer(metric=None, text=f"Nothing can be said: {primary} could not be measured.")
    # Energy rests on the CPU time, and CPU time is what energy is asked by where no meter is.
    rests_on = [cpu_time for cpu_time, energy in _STANDS_FOR.items() if energy == primary]
    others = [_STANDS_FOR[primary]] if primary in _STANDS_FOR else rests_on
    ground = next((named[name] for name in others if name in named and named[name].difference.ci95), None)
    return Answer(
        metric=chosen.name,
        text=_sentence(chosen, a, b),
        ground=_sentence(ground, a, b) if ground else None,
        speed=_apart(metrics, _SPEED, a, b),
        power=_apart(metrics, _POWER, a, b),
    )


def _sentence(metric: Metric, a: str, b: str) -> str:
    what = words(metric.name)
    apart, interval = metric.difference.b_minus_a, metric.difference.ci95
    if apart is None or interval is None:
        return f"Too few pairs to say whether {a} and {b} differ in {what}."
    scale, unit, figure = _scale(metric, apart, interval[0])
    difference, (low, high) = scale * apart, (scale * end for end in interval)
    sure = f"95 %{', estimated' if metric.kind == 'estimated' else ''}"
    if metric.verdict == "inconclusive":
        could = metric.minimum_detectable_percent
        seen = (
            f" A difference of {_three(could)} % would have been found."
            if could is not None and unit == _PERCENT
            else ""
        )
        figures = f"{_signed(figure(difference))}{unit} ({_signed(figure(low))} to {_signed(figure(high))}, {sure})."
        if low > 0 or high < 0:
            return f"Among so many figures it is not sure that {a} and {b} differ in {what}: {figures}"
        return f"No difference found between {a} and {b} in {what}: {figures}{seen}"
    ends = sorted((abs(low), abs(high)))
    within = f"{figure(ends[0])} – {figure(ends[1])}{unit}, {sure}"
    more = "more" if difference > 0 else "less"
    if unit != _PERCENT:
        return (
            f"{what[:1].upper()}{what[1:]}: {figure(abs(difference))}{unit} {more} with {b} than with {a} ({within})."
        )
    said = _WORDS.get(metric.name) or _Said(what, f"has {{}} times the {what} of", f"has {{}} % {{}} {what} than")
    ratio = metric.ratio
    if ratio is not None and ratio.ci95 is not None and (ratio.b_over_a >= 1.5 or ratio.b_over_a <= 2 / 3):
        first, second, flip = (b, a, False) if ratio.b_over_a > 1 else (a, b, True)
        value = 1 / ratio.b_over_a if flip else ratio.b_over_a
        times = sorted(1 / end if flip else end for end in ratio.ci95)
        return f"{first} {said.times.format(_three(value))} {second} ({_three(times[0])} – {_three(times[1])}, {sure})."
    if difference < 0 and ends[1] > 100:
        # Few windows that are no pairs: A's mean does not bound the difference. Nobody uses less than nothing.
        within = f"at least {figure(ends[0])} %, {sure}"
    return f"{b} {said.percent.format(figure(abs(difference)), more)} {a} ({within})."


def _scale(metric: Metric, apart: float, low: float) -> tuple[float, str, Callable[[float], str]]:
    """What a difference is multiplied by to be told, its unit, and the form of such a figure.

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


_SPEED = {
    "time_to_solution_s": "time to solution",
    "latency_p95_ms": "p95 latency",
    "time_s_per_execution": "time of an execution",
}
_POWER = {"watts": "watts", "c0_percent": "time in C0"}


def _apart(metrics: Sequence[Metric], names: dict[str, str], a: str, b: str) -> str | None:
    adjective = ("faster", "slower", "speed") if names is _SPEED else ("lower in power", "higher in power", "power")
    for name, said in names.items():
        metric = next((metric for metric in metrics if metric.name == name), None)
        if metric is None:
            continue
        kind = ", estimated" if metric.kind == "estimated" else ""
        if metric.verdict == "inconclusive":
            return f"no difference in {adjective[2]} between {a} and {b} was shown ({said}{kind})"
        return f"{b} is {adjective[0 if metric.verdict == 'b_lower' else 1]} ({said}{kind})"
    return None
