# SPDX-License-Identifier: Apache-2.0
"""Reports of `powerprof cure`: the answer, both arms side by side, the restored setting, and how to keep the change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from powerprof.cure.records import Cure, CurePrediction, Remedy
from powerprof.cure.remedies import CureRequest
from powerprof.cure.slack import command_name_of, slack_text
from powerprof.diagnosis.thread_pace import DEFAULT_NS, format_prediction
from powerprof.experiment.claims import NO_BOUND_PERCENT, claim_of, metric_named
from powerprof.experiment.records import Metric
from powerprof.model import text
from powerprof.report.answers import interval_text, outcome_of, word_undecided
from powerprof.report.document import NOT_TERMINAL, TERMINAL, Document, Part, Section, Sentence, Shown, View
from powerprof.report.labels import format_significant
from powerprof.report.layouts import metric_lines
from powerprof.report.metrics import JUDGED_HEADS, cure_table, cure_windows_table, judged_cells
from powerprof.report.table import Line, Places, without_empty
from powerprof.statistics.verdicts import UNKNOWN_CLAIM
from powerprof.system.cgroups import service_of
from powerprof.system.next_steps import command_line

if TYPE_CHECKING:
    from powerprof.cure.candidates import Candidate
    from powerprof.cure.slack import SlackChange


def word_cure(cure: Cure) -> Cure:
    """Return the record with its answer in words."""
    return msgspec.structs.replace(cure, verdict=msgspec.structs.replace(cure.verdict, text=answer_of(cure)))


def answer_of(cure: Cure) -> str:
    """Return the answer: the saved wake-ups and their cost."""
    metric = metric_named(cure.metrics, cure.verdict.metric)
    thread = cure.remedy.thread
    who = thread.label if thread is not None else cure.target.label
    if cure.verdict.untried == "same_value":
        value = format_value(cure.remedy.kind, cure.remedy.from_value)
        return f"Nothing to gain: {cure.remedy.name} is {value} already. Nothing was changed."
    if cure.verdict.untried == "no_saving":
        slack = format_value(cure.remedy.kind, cure.remedy.to_value)
        return (
            f"Nothing to gain: {slack} of timer slack would save no wake-ups of {who} "
            f"(predicted: {_prediction_text(cure.predicted)} wake-ups/s). Nothing was changed."
        )
    if metric is None or metric.a.mean is None or metric.b.mean is None:
        return f"No result for {cure.remedy.name}: no complete pair of windows."
    hurt = _latency_limit_text(cure)
    if hurt:
        return hurt
    if cure.remedy.kind == "host":
        return _host_answer(cure, metric)
    change = f"{text.number(metric.a.mean, 1)} → {text.number(metric.b.mean, 1)}/s{_interval_text(metric)}"
    difference = metric.difference.b_minus_a or 0.0
    claim = claim_of(metric)
    if claim.verdict == "inconclusive":
        return f"{_undecided(cure, metric, f'the wake-ups of {who}')}: {change}{_power_text(metric)}."
    word = "less often" if claim.verdict == "b_lower" else "more often"
    saving = f"{who} wakes up {text.number(abs(difference), 1)} times a second {word}: {change}."
    return " ".join([saving, *_latency_sentences(cure)])


def _undecided(cure: Cure, metric: Metric, what: str) -> str:
    return word_undecided(outcome_of(metric, len(cure.metrics)), "change", f"of {what}", f"{what} changed")


def _power_text(metric: Metric) -> str:
    seen = metric.minimum_detectable_percent
    return "" if seen is None else f"; smallest detectable change: {text.number(seen, 1)} %"


_HOST_SUBJECTS = {"watts": "the host's power", "c0_percent": "the time in which the CPUs run or poll"}


def _host_answer(cure: Cure, metric: Metric) -> str:
    """Return the two halves of the answer: what the setting saves, and the largest rise of latency it can have."""
    unit = "W" if metric.name == "watts" else "%"
    digits = 1 if unit == "W" else 2
    subject = _HOST_SUBJECTS.get(metric.name, metric.name)
    ends = metric.difference.ci95
    change = f"{text.number(metric.a.mean, digits)} → {text.number(metric.b.mean, digits)} {unit}"
    if ends is not None:
        change += f" {interval_text((text.signed(ends[0], digits), f'{text.signed(ends[1], digits)} {unit}'))}"
    claim = claim_of(metric)
    verb = {"b_lower": "lowers", "b_higher": "raises"}.get(claim.verdict)
    value = cure.remedy.to_value
    link = " of " if value.endswith((" µs", " ns")) else " at " if value.isdigit() else " "
    remedy = f"{cure.remedy.name}{link}{value}"
    if verb is None:
        saving = f"{_undecided(cure, metric, f'{subject} by {remedy}')}: {change}."
    else:
        saving = f"{remedy[0].upper()}{remedy[1:]} {verb} {subject}: {change}."
    if metric.name != "watts":
        saving += " The power is unknown: no meter measures it."
    percentile = cure.verdict.guard_percentile
    latency = metric_named(cure.metrics, f"latency_p{percentile}_ms")
    return f"{saving} {word_latency(latency, f'the p{percentile} of statements')}"


def word_latency(metric: Metric | None, what: str) -> str:
    """Return the sentence about the change of a latency: its direction and its largest rise."""
    claim, base = (UNKNOWN_CLAIM, None) if metric is None else (claim_of(metric), metric.a.mean)
    if claim.ends is None or not base:
        return f"The effect on {what} is unknown."
    low, most = claim.ends
    percent = 100 * most / base
    rise = f"at most {format_significant(most)} ms, {format_significant(percent)} % (95 %)"
    is_bounded = percent <= NO_BOUND_PERCENT
    if claim.verdict == "b_higher":
        bound = f" and {rise}" if is_bounded else ""
        return f"It raises {what}, by at least {format_significant(low)} ms{bound}."
    if most <= 0:
        return f"{what[0].upper()}{what[1:]} does not rise (95 %)."
    if not is_bounded:
        return f"The effect on {what} is undecided: a rise of more than {NO_BOUND_PERCENT:.0f} % is possible."
    return f"{what[0].upper()}{what[1:]} rises by {rise}."


def _latency_limit_text(cure: Cure) -> str:
    """Return the reason for an early end; empty if latency stayed below its limit."""
    verdict = cure.verdict
    if verdict.hurts is None or not verdict.hurts_from_ms or verdict.hurts_to_ms is None:
        return ""
    percent = 100 * (verdict.hurts_to_ms / verdict.hurts_from_ms - 1)
    what = "statements" if verdict.hurts == "statements" else "statements that commit"
    return (
        f"Stopped early: p{verdict.guard_percentile} latency of {what} rose by {text.number(percent, 0)} % "
        f"({text.number(verdict.hurts_from_ms, 2)} → {text.number(verdict.hurts_to_ms, 2)} ms), above "
        f"the limit of {verdict.max_p95_percent:g} %."
    )


_LATENCIES = (
    ("latency_p95_ms", "the p95 of statements"),
    ("commit_p95_ms", "the p95 of statements that commit"),
    ("replica_delay_ms", "the replica's delay"),
)


def _latency_sentences(cure: Cure) -> Iterator[str]:
    """Yield the cost of the change: a sentence for each measured latency."""
    for name, what in _LATENCIES:
        metric = metric_named(cure.metrics, name)
        if metric is not None:
            yield word_latency(metric, what)


def _prediction_text(predicted: CurePrediction | None) -> str:
    """Return `97.5 → 16.6 to 18.9`; `unknown` without a prediction."""
    if predicted is None:
        return "unknown"
    then = format_prediction(predicted.then_hz, predicted.most_hz, predicted.is_bound)
    return f"{text.number(predicted.now_hz, 1)} → {then}"


def prediction_line(cure: Cure) -> str:
    """Return `Predicted 18.9/s, measured 16.7/s.`; empty without a prediction."""
    metric = metric_named(cure.metrics, cure.verdict.metric)
    if cure.predicted is None or metric is None or metric.b.mean is None:
        return ""
    predicted = cure.predicted
    then = format_prediction(predicted.then_hz, predicted.most_hz, predicted.is_bound)
    return f"Predicted {then}/s, measured {text.number(metric.b.mean, 1)}/s."


def _interval_text(metric: Metric) -> str:
    ends = metric.difference.ci95
    signed = text.signed(metric.difference.b_minus_a, 1)
    if ends is None:
        return f" ({signed})"
    within = interval_text((text.signed(ends[0], 1), f"{text.signed(ends[1], 1)}/s")).strip("()")
    return f" ({signed}/s; {within})"


def format_value(kind: str, value: str | None) -> str:
    """Return a setting's value as typed: timer slack, stored in ns, as `50ms`."""
    return slack_text(int(value)) if kind == "timer_slack" and value and value.isdigit() else str(value)


def announce_lines(
    remedy: Remedy, label: str, pid: int, request: CureRequest, lasts_s: float, predicted: CurePrediction | None = None
) -> list[str]:
    """Return the planned change, before it is made."""
    before, then = format_value(remedy.kind, remedy.from_value), format_value(remedy.kind, remedy.to_value)
    limit = "some" if request.precision_percent is None else "at most"
    whose = "this host" if remedy.kind == "host" else f"{label} ({pid})"
    printed = [
        f"This changes {remedy.name} of {whose} from {before} to {then}, alternately: "
        f"{_windows_text(request)} s, {limit} {lasts_s:.0f} s in all.",
        f"{side_effect(remedy)}.",
    ]
    if predicted is not None:
        printed.append(f"Predicted: {_prediction_text(predicted)} wake-ups/s of the thread.")
    return [*printed, "It is restored after each window, even if powerprof is killed, and verified."]


def _windows_text(request: CureRequest) -> str:
    pairs, most = request.pairs, request.most_pairs
    count = f"{pairs}" if most == pairs else f"{pairs} to {most}"
    return (
        f"{count} windows without the change and {'as many' if most > pairs else pairs} with it, of "
        f"{request.window_s:g}"
    )


def side_effect(remedy: Remedy) -> str:
    """Return the other effects of the change while it lasts."""
    verb = {"timer_slack": "delays", "variable": "affects", "host": "affects"}[remedy.kind]
    return f"During the change it {verb} {remedy.delays.replace(', during the change', '', 1)}"


def slack_lines(change: SlackChange, pid: str) -> list[str]:
    """Return the kept timer slack, and the commands that keep it after a restart and release it."""
    thread, slack = change.thread, slack_text(int(change.now))
    command = command_line("cure --pid {} --thread {}", pid, command_name_of(change.target.pids[0], thread))
    before = format_value("timer_slack", change.before)
    # Only a systemd service can be followed by a unit.
    print_unit = " --print unit" if service_of(change.target.pids[0]) is not None else ""
    release = "--release" if before == slack_text(DEFAULT_NS) else f"--slack {before} --keep"
    return [
        released_line(change),
        f"It delays every timeout of this one thread by at most {slack}, and ends with it.",
        f"After each start: {command} --slack {slack} --keep{print_unit}",
        f"To undo: {command} {release}",
    ]


def released_line(change: SlackChange) -> str:
    """Return the timer slack before and after a change."""
    before, now = (format_value("timer_slack", value) for value in (change.before, change.now))
    thread = change.thread
    return f"Timer slack of {thread.label} (thread {thread.tid} of {change.target.label}): {before} → {now}, verified."


def candidate_lines(candidates: Sequence[Candidate]) -> list[str]:
    """Return the changes that can be tried, each with its command line."""
    live = [candidate for candidate in candidates if candidate.options is not None]
    others = [f"  {candidate.why}" for candidate in candidates if candidate.options is None]
    if not candidates:
        return [
            "No changes to try on the live server: no thread wakes 2 times a second or more by its own timers, and "
            "diagnose finds no fault."
        ]
    if not live:
        return ["No changes to try on the live server:", *others]
    lines = ["You can try these on the live server (measured, then undone):"]
    for candidate in live:
        command = command_line("cure --pid {} {}", candidate.pid, candidate.options)
        lines += [f"  {candidate.why}", f"    {command}"]
    return [*lines, "Not possible on the live server:", *others] if others else lines


_LETTERS = {"before": "A", "cured": "B"}


def context_of(cure: Cure) -> str:
    """Return the change, the number of windows, and whether the setting was restored."""
    order = "".join(_LETTERS[arm] for arm in cure.order[:4])
    remedy = cure.remedy
    before, then = (format_value(remedy.kind, value) for value in (remedy.from_value, remedy.to_value))
    parts = [f"{remedy.name}: {before} → {then}"]
    if cure.order:
        parts.append(f"{cure.blocks_count} windows {order}… of {text.number(cure.window_s, 1)} s")
    parts.append(_restored_text(cure))
    return " · ".join(parts)


def _restored_text(cure: Cure) -> str:
    if cure.verdict.untried:
        return "not tried"
    if cure.reverted is None:
        return "it ended with its thread"
    return f"restored and verified: {_value_now(cure)}" if cure.reverted else "not restored"


def _value_now(cure: Cure) -> str:
    return format_value(cure.remedy.kind, cure.read_back)


def document(cure: Cure, view: View) -> Document:
    """Return the report of a cure: both arms side by side, the effects of the change, and each window."""
    return Document(
        record=cure,
        answer=cure.verdict.text or answer_of(cure),
        context=context_of(cure),
        lead=_list_lead(cure),
        parts=partial(_list_parts, cure),
        rows=partial(_list_rows, cure),
        setup=(("Process", "/target"), ("Remedy", "/remedy"), ("Cost of powerprof", "/tool"), ("Host", "/host")),
        derived=view.extras.derived,
    )


def _list_lead(cure: Cure) -> list[Sentence]:
    lead = [Sentence(prediction_line(cure))]
    if cure.reverted is False and not cure.verdict.untried:
        kept = f"its value is {_value_now(cure)}, which another user set during the test."
        lead.append(Sentence(kept, "Not restored", look="warning"))
    return lead


def _list_parts(cure: Cure) -> Iterator[Part]:
    places = Places(cure)
    both = cure_table(cure, places)
    metrics: list[Part] = [Shown(both, metric_lines, "metrics"), Sentence(both.caption, forms=TERMINAL)]
    yield Section("Before and with the change", metrics, name="metrics")
    yield Section("Effects of the change", [] if cure.verdict.untried else _list_effects(cure), name="keep")
    windows = Shown(without_empty(cure_windows_table(cure, places)), look="windows", what="windows", names=False)
    yield Section("Window by window", [windows], name="windows", headed=NOT_TERMINAL, forms=NOT_TERMINAL)


def _list_effects(cure: Cure) -> list[Part]:
    metric = metric_named(cure.metrics, cure.verdict.metric)
    helps = metric is not None and metric.verdict == "b_lower" and cure.verdict.hurts is None
    return [
        *([Sentence(f"{cure.remedy.lasting}.", "To keep it")] if helps else []),
        Sentence(f"{side_effect(cure.remedy)}."),
        Sentence(f"{cure.latency}.", "Latency of the server's statements"),
        Sentence(f"{cure.replication}.", "Replication lag"),
    ]


def _list_rows(cure: Cure) -> Iterator[Line]:
    """Yield one line per metric."""
    yield ["metric", "unit", "kind", *JUDGED_HEADS]
    for metric in cure.metrics:
        yield [metric.name, metric.unit, metric.kind, *judged_cells(metric)]
