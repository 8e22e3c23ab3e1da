# SPDX-License-Identifier: Apache-2.0
"""Words of judged figures: the outcome that every form prints, and the sentences about a difference."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from powerprof.experiment.claims import NO_BOUND_PERCENT, SPEED, claim_of, describe_direction, percent_base
from powerprof.experiment.records import Metric
from powerprof.model import text
from powerprof.report import labels
from powerprof.statistics.verdicts import PRIMARY_LEVEL, UNKNOWN_CLAIM, Claim


def noun_of(name: str) -> str:
    """Return the metric's noun for a sentence."""
    return labels.define_metric(name).noun


MAY_BE_CHANCE = "may be chance"
TYPICALLY = "typically"
_CORRECTED = "the 95 % interval excludes 0, but the difference is not significant after the correction for"


class Outcome(msgspec.Struct, frozen=True):
    """The words for a claim. Only this module makes them.

    Attributes:
        word: better, worse, higher, lower, also after `typically`; `may be chance`, inconclusive, or unknown.
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


def _adverb_of(claim: Claim) -> str:
    """Return `typically ` for a claim about typical pairs; empty for one about the mean."""
    return f"{TYPICALLY} " if claim.is_typical else ""


def word_claim(name: str, claim: Claim, family: int, things: str = "metrics") -> Outcome:
    """Return the outcome of a claim about the metric `name`, one of `family` figures that were judged together."""
    if claim.unknown:
        return Outcome("unknown", bound="too few windows for an interval")
    if claim.hint is not None:
        return Outcome(MAY_BE_CHANCE, f" (among {family:,} {things})" if family > 1 else "")
    return Outcome(_adverb_of(claim) + describe_direction(name, claim.verdict))


def outcome_of(metric: Metric, family: int) -> Outcome:
    """Return the outcome of a metric, one of `family` metrics, with its bound."""
    claim = claim_of(metric)
    outcome = word_claim(metric.name, claim, family)
    if outcome.word != "inconclusive":
        return outcome
    if claim.bound is None:
        return replace(outcome, bound=_TOO_WIDE)
    return replace(outcome, bound=bound_text(claim.bound, _Scale(metric).text(claim.bound)), is_bounded=True)


def of_each(what: str) -> str:
    """Return the words after the largest bound of several figures."""
    return f" of {what} (95 % interval at each)"


def bound_text(bound: float, shown: str) -> str:
    """Return `less than 9.5 %`. The step of a meter is unknown, so equal readings may hide a difference."""
    return f"less than {shown}" if bound else "all windows measured the same value"


_TOO_WIDE = "the interval is too wide for a bound"


def _percent_text(percent: float) -> str:
    """Return a percentage that is not 0 so that it does not look like 0."""
    return text.number(percent, 1) if percent >= 0.1 or not percent else labels.format_significant(percent)


def outcome_in_percent(claim: Claim, base: float | None, of: str = "") -> Outcome:
    """Return the outcome of a claim without a metric of its own, with its bound in percent of `base`."""
    outcome = word_claim("", claim, 1)
    if outcome.word != "inconclusive":
        return outcome
    if claim.bound is None or not base:
        return replace(outcome, bound=_TOO_WIDE)
    shown = _percent_text(100 * claim.bound / abs(base))
    return replace(outcome, bound=bound_text(claim.bound, f"{shown} %{of}"), is_bounded=True)


def join_outcomes(
    claims: Sequence[Claim], bases: Sequence[float | None], places: Sequence[str], of: str = ""
) -> Outcome:
    """Return the outcome of undecided claims at several places, with their largest bound; `of` follows its percent."""
    unknown = sum(claim.unknown or not base for claim, base in zip(claims, bases, strict=True))
    hints = [place for place, claim in zip(places, claims, strict=True) if claim.hint is not None]
    if hints:
        others = [number for number, claim in enumerate(claims) if claim.hint is None]
        rest = join_outcomes([claims[n] for n in others], [bases[n] for n in others], [places[n] for n in others], of)
        elsewhere = f", {rest.bound} at the {len(others)} others" if others and rest.is_bounded else ""
        return Outcome(MAY_BE_CHANCE, f" at {text.join_words(hints)}{elsewhere}")
    if unknown:
        return Outcome("unknown", bound=f"the bound of a difference is unknown at {unknown} of {len(claims)}")
    known = [(claim, base) for claim, base in zip(claims, bases, strict=True) if claim.bound is not None and base]
    claim, base = max(known, key=lambda each: (each[0].bound or 0.0) / abs(each[1]), default=(UNKNOWN_CLAIM, None))
    if len(known) < len(claims) or not base or 100 * (claim.bound or 0.0) > NO_BOUND_PERCENT * abs(base):
        return Outcome("inconclusive", bound="the intervals are too wide for a bound")
    return outcome_in_percent(claim, base, of)


def explain_chance(hints: Iterable[bool], family: int, things: str = "metrics") -> str:
    """Return the explanation of `may be chance` if one of the printed rows has that word; empty otherwise."""
    if not any(hints):
        return ""
    if family <= 1:
        return (
            f"May be chance: the 95 % interval excludes 0, but a verdict needs {100 * PRIMARY_LEVEL:g} %: measure more."
        )
    return f"May be chance (among {family:,} {things}): {_CORRECTED} {family:,} {things}."


def explain_metrics(metrics: Sequence[Metric], family: int | None = None) -> str:
    """Return the explanation of `may be chance` and `typically` for these metrics; empty if none has the words.

    `family` metrics were judged together; None means all of these.
    """
    claims = [claim_of(metric) for metric in metrics]
    chance = explain_chance((claim.hint is not None for claim in claims), family or len(metrics))
    typical = _TYPICAL_PAIRS if any(claim.is_typical for claim in claims) else ""
    return " ".join(filter(None, (chance, typical)))


_TYPICAL_PAIRS = "Typically: by the ranks of the pairs; a few pairs differ too much for a verdict on the mean."


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
        figure = _percent_text(abs(shown)) if self.is_percent else labels.format_significant(abs(shown))
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
    if claim.is_typical and metric.typical is not None and claim.times is not None:
        ratio = _word_ratio(metric, metric.typical.b_over_a, claim.times, a, b, _adverb_of(claim))
        return f"{ratio[:-1]}; by the ranks of the pairs, not by the mean)."
    if difference is None or ends is None:
        return f"Too few pairs to judge whether {a} and {b} differ in {what}."
    scale = _Scale(metric)
    is_estimated = metric.kind == "estimated"
    within = interval_text((scale.text(end, signed=True) for end in ends), is_estimated=is_estimated)
    if claim.hint is not None:
        outcome = replace(
            outcome, bound=f"{scale.text(difference, signed=True)} {within} {outcome.word}{outcome.count}"
        )
    elif not outcome.is_bounded or claim.bound:
        outcome = replace(outcome, bound=f"{outcome.bound} {within}")
    if claim.verdict == "inconclusive":
        about, asked = f"between {a} and {b} in {what}", f"{a} and {b} differ in {what}"
        return f"{word_undecided(outcome, 'difference', about, asked)}."
    least, most = sorted(abs(end) for end in ends)
    more = "more" if difference > 0 else "less"
    within = interval_text((scale.text(least), scale.text(most)), is_estimated=is_estimated)
    if not scale.is_percent:
        shown = f"{scale.text(abs(difference))} {more} with {b} than with {a}"
        return f"{what[:1].upper()}{what[1:]}: {shown} {within}."
    if shows_times(metric, claim) and metric.ratio is not None and claim.times is not None:
        return f"{_word_ratio(metric, metric.ratio.b_over_a, claim.times, a, b)}."
    shown = defined.word_percent(scale.text(abs(difference)).removesuffix(scale.unit), more)
    return f"{b} {shown} {a} {within}."


def _word_ratio(metric: Metric, ratio: float, ends: tuple[float, float], a: str, b: str, adverb: str = "") -> str:
    """Return the sentence about b / a, without a full stop: N times as much, or N % more or less if that is small."""
    defined, is_estimated = labels.define_metric(metric.name), metric.kind == "estimated"
    if 2 / 3 < ratio < 1.5:
        least, most = sorted((100 * (end - 1) for end in ends), key=abs)
        within = interval_text((f"{_percent_text(abs(end))} %" for end in (least, most)), is_estimated=is_estimated)
        shown = defined.word_percent(_percent_text(100 * abs(ratio - 1)), "more" if ratio > 1 else "less")
        return f"{b} {adverb}{shown} {a} {within}"
    first, second = b, a
    if ratio < 1:
        first, second, ratio, ends = a, b, 1 / ratio, (1 / ends[1], 1 / ends[0])
    low, high = map(labels.format_significant, ends)
    within = interval_text((low, f"{high} times"), is_estimated=is_estimated)
    return f"{first} {adverb}{defined.word_times(labels.format_significant(ratio))} {second} {within}"


def word_undecided(outcome: Outcome, noun: str, about: str, asked: str) -> str:
    """Return the sentence about an undecided outcome, without a full stop.

    It is `No measurable NOUN ABOUT: less than …`, or `Inconclusive whether ASKED: …` with the reason.
    """
    if outcome.is_bounded:
        return f"No measurable {noun} {about}: {outcome.bound}"
    reason = outcome.bound or f"the {noun} {outcome.word}{outcome.count}"
    return f"Inconclusive whether {asked}: {reason}"


def word_side(metric: Metric, b: str, family: int) -> str:
    """Return the phrase about speed or power, without a full stop."""
    lower, higher, subject = (
        ("faster", "slower", "speed") if metric.name in SPEED else ("lower in power", "higher in power", "power")
    )
    defined = labels.define_metric(metric.name)
    basis = f"({defined.basis or defined.thing}{', estimated' if metric.kind == 'estimated' else ''})"
    claim, outcome = claim_of(metric), outcome_of(metric, family)
    if claim.verdict != "inconclusive":
        return f"{b} is {_adverb_of(claim)}{lower if claim.verdict == 'b_lower' else higher} {basis}"
    if claim.hint is not None:
        return f"the difference in {subject} {basis} {outcome.text}"
    return f"{subject} {basis} {'shows' if outcome.is_bounded else 'is'} {outcome.text}"
