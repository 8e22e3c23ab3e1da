# SPDX-License-Identifier: Apache-2.0
"""Draw 80 records of each of eight kinds: each sentence states what the intervals of its rows permit, by one rule."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from powerprof.experiment.records import Ratio
from powerprof.experiment.study import build_rows
from powerprof.experiment.sweep_until import Limit
from powerprof.model.records import Estimate
from powerprof.queries.comparison import compare_queries
from powerprof.report import idle_answer, queries_comparison, saturation, study
from powerprof.report.cure import answer_of as cure_answer
from powerprof.report.table import Places
from tests.unit.experiment.test_studies import STUDY, finding
from tests.unit.layers import sources
from tests.unit.queries.test_comparison import of, window
from tests.unit.report import test_words
from tests.unit.report.distinct_records import make_kind
from tests.unit.report.sample_records import idle_run
from tests.unit.report.test_cure import _cure

DRAWS = 80


class Fact(NamedTuple):
    """The interval of one row, whether it has a verdict, and the figure of which percentages are."""

    ends: tuple[float, float] | None
    has_verdict: bool
    base: float | None = None

    @property
    def state(self) -> str:
        """Return decided, chance, open or unknown: the only permitted outcome."""
        if self.ends is None:
            return "unknown"
        if self.ends[0] <= 0 <= self.ends[1]:
            return "open"
        return "decided" if self.has_verdict else "chance"

    @property
    def largest_percent(self) -> float | None:
        """Return the largest possible difference in percent."""
        if self.ends is None or not self.base:
            return None
        return 100 * max(map(abs, self.ends)) / abs(self.base)


class Said(NamedTuple):
    """A sentence, the rows that it is about, and the words for a rise and for a fall."""

    text: str
    facts: list[Fact]
    rise: str = ""
    fall: str = ""


_WORDS = (
    ("chance", "may be chance"),
    ("unknown", "[Tt]oo few|is unknown|bound of a difference is unknown|One window|known interval|No result|no yearly"),
    ("open", "[Nn]o measurable|[Ii]nconclusive|No answer|undecided|is possible|each changed by less|same value"),
)


def state_of(text: str) -> str:
    """Return what a sentence states, by its words."""
    return next((state for state, words in _WORDS if re.search(words, text)), "decided")


def faults(said: Said) -> Iterator[str]:
    """Yield how a sentence contradicts its rows."""
    states = [fact.state for fact in said.facts]
    permitted = next(state for state in ("decided", "chance", "unknown", "open") if state in states)
    if state_of(said.text) != permitted:
        yield f"{permitted}, said {state_of(said.text)}: {said.text} {said.facts}"
    if re.search("[Nn]o measurable", said.text) and set(states) != {"open"}:
        yield f"no measurable difference in {said.facts}: {said.text}"
    for bound in re.findall(r"less than ([\d.,]+(?:e−\d+)?) %", said.text) if permitted == "open" else ():
        most = max((fact.largest_percent or 0.0 for fact in said.facts), default=0.0)
        if float(bound.replace(",", "").replace("−", "-")) < 0.99 * most - 0.06:
            yield f"less than {bound} % of {most}: {said.text}"
    if permitted == "decided" and said.rise:
        rises, falls = (any(f.state == "decided" and (f.ends[0] > 0) == up for f in said.facts) for up in (True, False))  # type: ignore[index]
        if re.search(said.rise, said.text) and not rises:
            yield f"no rise: {said.text} {said.facts}"
        if re.search(said.fall, said.text) and not falls:
            yield f"no fall: {said.text} {said.facts}"


def _compare(seed: int) -> Iterator[Said]:
    record = test_words.draw(seed)
    for metric in record.metrics:
        if metric.name == record.verdict.metric:
            fact = Fact(metric.difference.ci95, metric.verdict != "inconclusive", metric.a.mean)
            if metric.typical is not None and metric.typical.ci95 is not None:
                low, high = metric.typical.ci95
                fact = Fact((low - 1, high - 1), True, 1.0)
                assert " typically " in record.verdict.text
            yield Said(record.verdict.text, [fact])


def _sweeps(seed: int) -> Iterator[Said]:
    record, claims = test_words._sweep(seed)
    means = [metric.a.mean for point in record.points for metric in point.metrics if metric.name == record.metric]
    facts = [Fact(*claim, mean) for claim, mean in zip(claims, means, strict=True)]
    yield Said(record.text, facts, "are higher", "are lower")


def _saturation(seed: int) -> Iterator[Said]:
    chance = random.Random(seed)
    record = make_kind("powerprof.saturation/1", known=True)
    limit = Limit(metric="latency_p95_ms", at_most=5.0, unit="ms")
    middle = chance.choice((0.3, 0.98, 1.0, 1.02, 4.0))
    reach = 1 + 10 ** chance.uniform(-4, 0.6)
    ends = None if chance.random() < 0.1 else (middle / reach, middle * reach)
    excludes = ends is not None and not ends[0] <= 1 <= ends[1]
    verdict = ("b_higher" if middle > 1 else "b_lower") if excludes and chance.random() < 0.7 else "inconclusive"
    record = replace(record, limit=limit, ratio=Ratio(b_over_a=middle, ci95=ends), verdict=verdict)
    moved = None if ends is None else (ends[0] - 1, ends[1] - 1)
    said = saturation.answer_of(record).partition(f"; {record.a.name}")[0]
    yield Said(said, [Fact(moved, verdict != "inconclusive", 1.0)])


def _trend(seed: int) -> Iterator[Said]:
    record, claims = test_words._trend(seed)
    means = [point.metrics[0].estimate.mean for point in record.points]
    known = [Fact(*claim, mean) for claim, mean in zip(claims, means, strict=False)]
    missing = len(record.points) - 1 - len(known)
    yield Said(record.text, known + missing * [Fact(None, False)], "rose by", "fell by")


def _study(seed: int) -> Iterator[Said]:
    """Yield each finding with its reason; one of `the same` is decided if its interval is within the tolerance."""
    chance, record = random.Random(seed), test_words.draw(seed)
    metrics = [metric for metric in record.metrics if metric.difference.b_minus_a is not None]
    wanted = []
    for metric in metrics:
        expected = chance.choice(("higher", "lower", "same"))
        within = 10 ** chance.uniform(-2, 2) * abs(metric.a.mean or 1.0) if expected == "same" else None
        wanted.append(finding(metric.name, "index:a", "index:b", expected=expected, within=within or None))
    rows = build_rows(replace(STUDY, findings=wanted), {"index": record}, 1)
    run = replace(test_words._STUDY_RUN, rows=rows)
    table = study.findings_table(run, Places(run))
    for metric, row, shown in zip(metrics, rows, table.rows, strict=True):
        outcome, ends = shown.words("outcome"), metric.difference.ci95
        text = f"{outcome.text}: {outcome.more}"
        if row.expected != "same":
            # A comparison and a finding have one verdict.
            rise, fall = ("confirmed", "contradicted")[:: 1 if row.expected == "higher" else -1]
            yield Said(text, [Fact(ends, metric.verdict != "inconclusive")], rise, fall)
            continue
        most = row.within or 0.0
        has_no_room = row.unit == "%" and row.a is not None and row.a.mean > 100 - most
        is_inside = ends is not None and -most <= ends[0] and ends[1] <= most
        is_outside = ends is not None and (ends[0] > most or ends[1] < -most)
        said = "confirmed" if is_inside and not has_no_room else "contradicted" if is_outside else "inconclusive"
        reason = "within" if said == "confirmed" else "beyond" if is_outside else "cannot rise" if is_inside else ""
        reason = reason or ("too few windows" if ends is None else "exceeds the tolerance")
        assert outcome.text == said and reason in outcome.more, (outcome, row)


def _queries(seed: int) -> Iterator[Said]:
    chance = random.Random(seed)
    names = [f"s{number:05}" for number in range(chance.choice((1, 4, 12)))]
    # Some windows differ by a few percent only, so that their intervals are close to the bound of 10 %.
    ratios = chance.choice(((1.0, 1.0, 1.02, 1.05, 1.5), (1.0, 1.0, 1.005, 1.01), (1.0, 1.02, 1.03)))
    calls = chance.choice(((3, 60, 400), (90_000,)))
    sides = [window(*(of(name, chance.choice(ratios), chance.choice(calls), 0.3) for name in names)) for _ in range(2)]
    record = compare_queries(*sides, "2026-01-01T00:00:00.000Z")
    facts = []
    for one in record.statements:
        middle = record.common_ratio
        ends = None if not (one.low and one.high and middle) else (one.low / middle - 1, one.high / middle - 1)
        facts.append(Fact(ends, one.became in ("more expensive", "cheaper"), 1.0))
    for one, fact in zip(record.statements, facts, strict=True):
        is_unchanged = queries_comparison.became_text(record, one) == "unchanged"
        is_within = fact.ends is not None and 1.000_001 + fact.ends[0] > 1 / 1.1 and fact.ends[1] < 0.100_001
        assert is_unchanged == (fact.state == "open" and is_within), (one, fact)
    known = [fact for fact in facts if fact.ends is not None]
    said = queries_comparison.answer_of(record)
    yield Said(said, known or facts, r"(?<!significantly )more expensive", r"\d cheaper")
    if "each changed by less than 10 %" in said:
        assert all((fact.largest_percent or 0.0) < 10.1 for fact in known), (said, known)


def _cures(seed: int) -> Iterator[Said]:
    record = _cure(seed)
    metric = next((each for each in record.metrics if each.name == record.verdict.metric), None)
    if metric is None or metric.a.mean is None or metric.b.mean is None:
        return
    first, *_ = cure_answer(record).split(". ")
    fact = Fact(metric.difference.ci95, metric.verdict != "inconclusive", metric.a.mean)
    yield Said(first, [fact], "more often| raises ", "less often| lowers ")


def _idle(seed: int) -> Iterator[Said]:
    """Yield the answer by the host's figures: without windows of its own, an interval alone decides."""
    chance, run = random.Random(seed), idle_run()
    single, deltas, facts = chance.random() < 0.1, [], []
    for delta in run.deltas:
        low, high = sorted(chance.choice((-1, 1)) * 10 ** chance.uniform(-3, 0.9) for _ in "ab")
        ends = (None, None) if single else (low, high)
        deltas.append(replace(delta, difference=Estimate(mean=(low + high) / 2, low=ends[0], high=ends[1])))
        if (delta.from_phase, delta.to_phase) == ("baseline", "clients") and delta.metric in (
            "c0_percent",
            "wakeups_hz",
        ):
            # A server cannot reduce the use of the host before its start, so a fall is no claim.
            facts.append(Fact(None if single else (min(low, 0.0) if low < 0 else low, max(high, 0.0)), True))
    phases = [replace(phase, windows=[], server_exits=None) for phase in run.phases]
    said = idle_answer.answer_of(replace(run, phases=phases, deltas=deltas))
    yield Said(said.partition("; the rest")[0], facts, "cost", "fewer")


_KINDS: dict[str, Callable[[int], Iterator[Said]]] = {
    "compare": _compare,
    "compare of sweeps": _sweeps,
    "sweep --until": _saturation,
    "trend": _trend,
    "study": _study,
    "compare of queries": _queries,
    "cure": _cures,
    "idle": _idle,
}


@pytest.mark.parametrize("kind", _KINDS)
def test_no_sentence_contradicts_its_rows(kind: str) -> None:
    states: set[str] = set()
    found = []
    for seed in range(DRAWS):
        for said in _KINDS[kind](seed):
            states |= {fact.state for fact in said.facts}
            found += [f"{seed}: {fault}" for fault in faults(said)]
    assert not found, (len(found), found[:4])
    assert {"decided", "open", *(() if kind == "idle" else ("chance",))} <= states, states


# A claim is made from an interval and a verdict, and the words of a claim are made from the claim: no sentence can be
# made from a bare number.
_MAKERS = {"Claim": {"powerprof/statistics/verdicts.py"}, "Outcome": {"powerprof/report/answers.py"}}


def test_only_one_module_makes_claims_and_one_their_words() -> None:
    found: dict[str, set[str]] = {name: set() for name in _MAKERS}
    worded = set()
    for module, text in sources.modules().items():
        place = f"powerprof/{module}"
        for node in sources.walk(text):
            name = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
            # Programs have an Outcome too.
            if name in found and (name == "Claim" or place.startswith("powerprof/report/")):
                found[name].add(place)
        if re.search(r"o measurable \{|nconclusive whether|o measurable difference|may be chance\"", text):
            worded.add(place)
    assert found == _MAKERS
    assert worded <= {"powerprof/report/answers.py", "powerprof/report/idle_answer.py", "powerprof/report/table.py"}
