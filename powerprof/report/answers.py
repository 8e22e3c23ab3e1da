# SPDX-License-Identifier: Apache-2.0
"""Words of judged figures: the outcome that every form prints, and the sentences about a difference."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from powerprof.experiment.claims import SPEED, claim_of, describe_direction, percent_base
from powerprof.experiment.records import Metric
from powerprof.model import text
from powerprof.report import labels
from powerprof.statistics.verdicts import PRIMARY_LEVEL, Claim


def noun_of(name: str) -> str:
    """Return the metric's noun for a sentence."""
    return labels.define_metric(name).noun


MAY_BE_CHANCE = "may be chance"
_CORRECTED = "the 95 % interval excludes 0, but the difference is not significant after the correction for"


class Outcome(msgspec.Struct, frozen=True):
    """The words for a claim.

    Attributes:
        word: better, worse, higher, lower, `may be chance`, inconclusive, or unknown.
        count: The remark after `may be chance`: the number of figures judged together; empty otherwise.
        bound: The bound of an inconclusive difference with its unit, or the reason for its absence; empty otherwise.
        is_bounded: Whether `bound` is a bound or proves equal readings.
    """

    word: str
    count: str = ""
    bound: str = ""
    is_bounded: bool = False

    @property
    def text(self) -> str:
        """The outcome in one phrase."""
        if self.is_bounded:
            return f"no measurable difference: {self.bound}"
        return f"{self.word}{self.count}" + (f": {self.bound}" if self.bound else "")


def word_claim(name: str, claim: Claim, family: int, things: str = "metrics") -> Outcome:
    """Return the outcome of a claim about the metric `name`, one of `family` figures that were judged together."""
    if claim.unknown:
        return Outcome("unknown", bound="too few windows for an interval")
    if claim.hint is not None:
        return Outcome(MAY_BE_CHANCE, f" (among {family:,} {things})" if family > 1 else "")
    return Outcome(describe_direction(name, claim.verdict))


def outcome_of(metric: Metric, family: int) -> Outcome:
    """Return the outcome of a metric, one of `family` metrics, with its bound."""
    claim = claim_of(metric)
    outcome = word_claim(metric.name, claim, family)
    if outcome.word != "inconclusive":
        return outcome
    if claim.bound is None:
        return replace(outcome, bound="the interval is too wide for a bound")
    return replace(outcome, bound=bound_text(claim.bound, _Scale(metric).text(claim.bound)), is_bounded=True)


def bound_text(bound: float, shown: str) -> str:
    """Return `less than 9.5 %`. The step of a meter is unknown, so equal readings may hide a difference."""
    return f"less than {shown}" if bound else "all windows measured the same value"


def explain_chance(hints: Iterable[bool], family: int, things: str = "metrics") -> str:
    """Return the explanation of `may be chance` if one of the printed rows has that word; empty otherwise."""
    if not any(hints):
        return ""
    if family <= 1:
        return (
            f"May be chance: the 95 % interval excludes 0, but a verdict needs {100 * PRIMARY_LEVEL:g} %: measure more."
        )
    return f"May be chance (among {family:,} {things}): {_CORRECTED} {family:,} {things}."


def explain_metrics(metrics: Sequence[Metric]) -> str:
    """Return the explanation of `may be chance` for metrics that were judged together; empty if none has the word."""
    return explain_chance((claim_of(metric).hint is not None for metric in metrics), len(metrics))


class _Scale:
    """The factor, the unit and the format of the differences of a metric.

    The unit is percent of A, or the metric's own unit if percentages of A are meaningless.
    """

    def __init__(self, metric: Metric) -> None:
        base = percent_base(metric)
        self.is_percent = base is not None
        self.unit, self.factor = " %", 100 / (base or 1.0)
        if base is None:
            known = (metric.difference.b_minus_a, *(metric.difference.ci95 or ()))
            unit, self.factor = labels.choose_prefix(metric.unit, max(abs(value or 0.0) for value in known))
            self.unit = {"": "", "1": "", "1/s": "/s"}.get(unit, f" {unit}")

    def text(self, value: float, *, signed: bool = False) -> str:
        """Return a difference with its unit."""
        shown = value * self.factor
        is_plain = self.is_percent and (abs(shown) >= 0.1 or not shown)
        figure = text.number(abs(shown), 1) if is_plain else labels.format_significant(abs(shown))
        sign = "−" if shown < 0 else "+" if signed else ""
        return f"{sign}{figure}{self.unit}"


def interval_text(ends: Iterable[str], *, is_estimated: bool = False) -> str:
    """Return `(95 % interval: 1.0 % to 2.0 %, estimated)`; both ends have their units."""
    return f"(95 % interval: {' to '.join(ends)}{', estimated' if is_estimated else ''})"


def shows_times(metric: Metric, claim: Claim) -> bool:
    """Return whether a ratio is clearer than a percentage: a difference of half or more with a known ratio."""
    ratio = metric.ratio
    return claim.times is not None and ratio is not None and not 2 / 3 < ratio.b_over_a < 1.5


def word_difference(metric: Metric, a: str, b: str, family: int) -> str:
    """Return the sentence about the difference in a metric, one of `family` metrics."""
    defined, ends, difference = labels.define_metric(metric.name), metric.difference.ci95, metric.difference.b_minus_a
    what = defined.noun
    claim, outcome = claim_of(metric), outcome_of(metric, family)
    if difference is None or ends is None:
        return f"Too few pairs to judge whether {a} and {b} differ in {what}."
    scale = _Scale(metric)
    is_estimated = metric.kind == "estimated"
    within = interval_text((scale.text(end, signed=True) for end in ends), is_estimated=is_estimated)
    if claim.hint is not None:
        shown = f"{scale.text(difference, signed=True)} {within} {outcome.word}{outcome.count}"
        return f"Inconclusive whether {a} and {b} differ in {what}: {shown}."
    if outcome.is_bounded:
        shown = f"{outcome.bound} {within}" if claim.bound else outcome.bound
        return f"No measurable difference between {a} and {b} in {what}: {shown}."
    if claim.verdict == "inconclusive":
        return f"Inconclusive whether {a} and {b} differ in {what}: {outcome.bound} {within}."
    least, most = sorted(abs(end) for end in ends)
    more = "more" if difference > 0 else "less"
    within = interval_text((scale.text(least), scale.text(most)), is_estimated=is_estimated)
    if not scale.is_percent:
        shown = f"{scale.text(abs(difference))} {more} with {b} than with {a}"
        return f"{what[:1].upper()}{what[1:]}: {shown} {within}."
    if shows_times(metric, claim) and metric.ratio is not None and claim.times is not None:
        first, second, value, times = b, a, metric.ratio.b_over_a, claim.times
        if value < 1:
            first, second, value, times = a, b, 1 / value, (1 / times[1], 1 / times[0])
        low, high = map(labels.format_significant, times)
        within = interval_text((low, f"{high} times"), is_estimated=is_estimated)
        shown = defined.word_times(labels.format_significant(value))
        return f"{first} {shown} {second} {within}."
    shown = defined.word_percent(scale.text(abs(difference)).removesuffix(scale.unit), more)
    return f"{b} {shown} {a} {within}."


def word_undecided(metric: Metric, of: str, family: int) -> str:
    """Return the beginning of a sentence about the undecided change `of` something, with its bound if it has one."""
    outcome = outcome_of(metric, family)
    if outcome.is_bounded:
        return f"No measurable change of {of}: {outcome.bound}"
    if claim_of(metric).hint is not None:
        return f"Inconclusive: the change of {of} {outcome.text}"
    return f"Inconclusive whether {of} changed: {outcome.bound}"


def word_side(metric: Metric, b: str, family: int) -> str:
    """Return the phrase about speed or power, without a full stop."""
    lower, higher, subject = (
        ("faster", "slower", "speed") if metric.name in SPEED else ("lower in power", "higher in power", "power")
    )
    defined = labels.define_metric(metric.name)
    basis = f"({defined.basis or defined.thing}{', estimated' if metric.kind == 'estimated' else ''})"
    claim, outcome = claim_of(metric), outcome_of(metric, family)
    if claim.verdict != "inconclusive":
        return f"{b} is {lower if claim.verdict == 'b_lower' else higher} {basis}"
    if claim.hint is not None:
        return f"the difference in {subject} {basis} {outcome.text}"
    return f"{subject} {basis} {'shows' if outcome.is_bounded else 'is'} {outcome.text}"
