# SPDX-License-Identifier: Apache-2.0
"""Names and units of metrics, and the digits of their figures."""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import ceil, floor, log10

import msgspec

from powerprof.model import text
from powerprof.model.metrics import MetricDefinition, find_metric
from powerprof.model.records import CostBound, Estimate, ToolCost

_UNIT_SUFFIX = re.compile(r"_(s|ms|us|ns|hz|percent|joules|watts|bytes|count|mhz)$")
_UNITS = {"us": "µs", "hz": "/s", "percent": "%", "joules": "J", "watts": "W", "count": "", "mhz": "MHz"}
_PREFIXED = {"J", "s", "J·s", "W"}
# Less than any meter or clock resolves, in every unit of a report: the rounding error of equal figures.
_NOTHING = 1e-12


def define_metric(name: str) -> MetricDefinition:
    """Return the definition of a metric; an unknown name of a saved record becomes words by `key_label`."""
    if (known := find_metric(name)) is not None:
        return known
    kind, colon, owner = name.partition(":")
    label, unit = key_label(name)
    return MetricDefinition(name, unit, label, f"  {owner}: {kind}" if colon else name, f"the {label}")


def metric_words(name: str) -> str:
    """Return the name of a metric in tables and on pages."""
    return define_metric(name).label


def key_label(name: str) -> tuple[str, str]:
    """Return a JSON key as words, and the unit of its suffix: `cpu_percent` → ("cpu", "%")."""
    suffix = _UNIT_SUFFIX.search(name)
    if suffix is None:
        return name.replace("_", " "), ""
    return name[: suffix.start()].replace("_", " "), _UNITS.get(suffix[1], suffix[1])


def format_significant(value: float | None) -> str:
    """Return a value with three significant digits, from 1,000 on as a whole number."""
    if value is None:
        return text.UNKNOWN
    if abs(value) < _NOTHING:
        return "0"
    if abs(value) < 0.0001:
        return f"{value:.2e}".replace("-", "−")
    places = 0 if abs(value) >= 1000 else max(0, 3 - len(str(int(abs(value)))) + (1 if abs(value) < 1 else 0))
    return text.number(value, 4 if 0 < abs(value) < 0.1 else places)


def format_together(values: Iterable[float]) -> list[str]:
    """Return a value and the ends of its interval with equal decimals, those of `follow_interval`."""
    mean, low, high = values
    if max(map(abs, (mean, low, high))) < 0.0001:
        return [format_significant(value) for value in (mean, low, high)]
    decimals = follow_interval(low, high)
    if decimals is None:
        return [format_significant(value) for value in (mean, low, high)]
    return [text.number(value, decimals) for value in (mean, low, high)]


def spaced(unit: str) -> str:
    """Return a unit as it follows a figure: ` ms`, `/s`, or nothing for a pure number."""
    if unit in ("", "1"):
        return ""
    return unit.removeprefix("1") if unit.startswith(("1/", "/")) else f" {unit}"


def choose_prefix(unit: str, largest: float) -> tuple[str, float]:
    """Return the unit with m or µ if the figures are small, and the factor for them."""
    if unit not in _PREFIXED or not 0 < abs(largest) < 0.1:
        return ("" if unit == "1" else unit), 1.0
    return (f"m{unit}", 1e3) if abs(largest) >= 1e-4 else (f"µ{unit}", 1e6)


def count_decimals(largest: float, digits: int = 3) -> int:
    """Return the number of decimals that shows `significant` digits of the largest figure of a row, at most six."""
    if not largest:
        return 0 if digits < 3 else 2
    return min(6, max(0, digits - 1 - floor(log10(abs(largest)))))


def separate(decimals: int, values: Iterable[float]) -> int:
    """Return as many decimals as different values need to be printed differently; `decimals` if four are too few."""
    distinct = set(values)
    enough = (more for more in range(decimals, 5) if len({round(each, more) for each in distinct}) == len(distinct))
    return next(enough, decimals)


_MOST_DECIMALS = 9


def follow_interval(low: float, high: float, equal: float = 0.0) -> int | None:
    """Return the decimals of a figure with this interval: two significant digits of half of its length.

    They are at most four significant digits of the larger end, but both ends differ, and an interval that excludes
    `equal`, the value of no difference, is printed so that it does. None for equal ends.
    """
    half, largest = (high - low) / 2, max(abs(low), abs(high))
    if half <= _NOTHING * max(1.0, largest):
        return None
    decimals = min(count_decimals(half, 2), count_decimals(largest, 4))
    apart = [(low, high)] if low <= equal <= high else [(low, high), (low, equal), (equal, high)]
    enough = (
        more
        for more in range(decimals, _MOST_DECIMALS + 1)
        if all(round(one, more) != round(other, more) for one, other in apart)
    )
    return next(enough, decimals)


def is_lopsided(mean: float, low: float, half: float) -> bool:
    """Return whether `mean ± half` reaches below 0 although the interval from `low` does not: print both ends then."""
    return low >= 0 > mean - half


def decimals_of(estimate: Estimate, digits: int) -> int:
    """Return the decimals of the interval of an estimate, or `digits` without one."""
    known = estimate.low is not None and estimate.high is not None
    followed = follow_interval(estimate.low or 0.0, estimate.high or 0.0) if known else None
    return digits if followed is None else followed


def plus_minus(estimate: Estimate, digits: int = 2, *, sign: bool = False) -> str:
    """Return `6.8 ± 0.5` with the decimals of `follow_interval`; without an interval the mean with `digits`.

    Return `6.8 (0.5 to 20.0)` for a lopsided interval.
    """
    write, digits = text.signed if sign else text.number, decimals_of(estimate, digits)
    mean, low, high = estimate.mean, estimate.low, estimate.high
    if low is None or high is None:
        return write(mean, digits)
    half = (high - low) / 2
    if is_lopsided(mean, low, half):
        return f"{write(mean, digits)} ({text.number(low, digits)} to {text.number(high, digits)})"
    return f"{write(mean, digits)} ± {text.number(half, digits)}"


def format_bound(value: float | None) -> str:
    """Return an upper bound with two significant digits, rounded up."""
    if value is None or value <= 0:
        return text.number(value, 1)
    decimals = count_decimals(value, 2)
    return text.number(ceil(value * 10**decimals - 1e-9) / 10**decimals, decimals)


def format_point(value: float, unit: str, low: float | None = None, high: float | None = None) -> str:
    """Return the figure of a mark in a chart with its unit, and with its interval if it is known."""
    if low is None or high is None:
        return format_significant(value) + spaced(unit)
    mean, *ends = format_together((value, low, high))
    return f"{mean} [{', '.join(ends)}]{spaced(unit)}"


class NumberFormat(msgspec.Struct, frozen=True):
    """The unit, the factor and the number of decimals of the figures of one row."""

    unit: str
    factor: float
    decimals: int


def choose_format(unit: str, values: Iterable[float | None]) -> NumberFormat:
    """Return how to show the figures of a row.

    The largest figure has three significant digits, the smallest has two if four decimals suffice.
    """
    known = [abs(value) for value in values if value]
    largest = max(known, default=0.0)
    name, factor = choose_prefix(unit, largest)
    if largest * factor >= 1000:
        return NumberFormat(name, factor, 0)
    least = count_decimals(min(known, default=0.0) * factor, 2)
    return NumberFormat(name, factor, max(count_decimals(largest * factor), min(4, least)))


_WITHOUT_PROGRAMS = "without its programs, whose time this kernel does not report"


def _compare_to_bound(percent: float | None, of: str, most_percent: float | None) -> str:
    """Return the cost as a share of this CPU time, with the bound of that share; None: without one."""
    bound = "no bound" if most_percent is None else f"bound {text.number(most_percent, 1)} %"
    return f"{text.number(percent, 2)} % of {of} ({bound})"


def format_own_cost(tool: ToolCost, capacity_s: float, of: str) -> str:
    """Return the CPU time of powerprof: of its processes, of its programs with their entries, and the bound.

    `capacity_s`: CPU time of all CPUs in the window. `of`: the CPU time of which the bound is a share.
    """
    if tool.cpu_percent is None or not capacity_s:
        return f"{text.UNKNOWN} % CPU"
    programs = None if tool.bpf_s is None else 100.0 * (tool.bpf_s + (tool.entry_s or 0.0)) / capacity_s
    whole = f"{text.number(tool.cpu_percent + (programs or 0.0), 2)} % CPU"
    if programs is None:
        return f"{whole} ({_WITHOUT_PROGRAMS})"
    parts = f"processes {text.number(tool.cpu_percent, 2)} %, programs {text.number(programs, 2)} %"
    if tool.cost_percent is None:
        return f"{whole} ({parts})"
    return f"{whole} ({parts}), {_compare_to_bound(tool.cost_percent, of, tool.max_cost_percent)}"


def describe_cost(bound: CostBound | None, process_s: float | None, window_s: float, label: str | None) -> str:
    """Return the CPU time of powerprof's process and programs in a window as a sentence, with the bound."""
    if process_s is None:
        return "powerprof itself: unknown."
    if bound is None:
        return f"powerprof itself: {text.number(1e3 * process_s, 0)} ms of CPU time."
    if bound.programs_s is None:
        parts = _WITHOUT_PROGRAMS
    else:
        processes, programs = (text.number(1e3 * part_s, 1) for part_s in (process_s, bound.programs_s))
        parts = f"processes {processes} ms, programs {programs} ms"
    percent = 100.0 * (process_s + (bound.programs_s or 0.0)) / window_s if window_s else None
    of = f"the CPU time of {label or 'the target'}"
    share = _compare_to_bound(bound.cost_percent, of, bound.max_cost_percent)
    whole = f"powerprof itself: {text.number(percent, 2)} % of one CPU ({parts}), {share}."
    if bound.frequency_hz is not None:
        return f"{whole} The bound lowered the frequency to {text.number(bound.frequency_hz, 0)} Hz."
    if not bound.slices_count:
        return whole
    slices = text.plural(bound.slices_count, "slice")
    traced = text.number(bound.traced_percent, 1)
    return (
        f"{whole} Because of the bound, {traced} % of the window was traced, in {slices}: "
        f"sums are estimates. {bound_unseen('An event', 'occurs', bound.unseen_below_hz)}"
    )


def bound_unseen(subject: str, verb: str, below_hz: float | None) -> str:
    """Return the sentence about what no slice shows. A burst can fall between two slices, so the bound is of others."""
    rate = format_significant(below_hz)
    return f"{subject} that no slice shows {verb} fewer than {rate} times a second, or in rare bursts."
