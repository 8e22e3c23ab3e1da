# SPDX-License-Identifier: Apache-2.0
"""The answer of a comparison in words, with its control and the threats to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from powerprof.experiment.claims import are_starts_repeated, find_answer_metrics, metric_named, with_claim
from powerprof.experiment.records import Answer, Comparison, ControlRecord, Metric, Threat
from powerprof.experiment.threats import find_doubts
from powerprof.model.text import plural
from powerprof.report.answers import noun_of, outcome_of, word_difference, word_side
from powerprof.report.notes import UNPAIRED, fill_template
from powerprof.system.next_steps import command_line

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
    "unpaired": UNPAIRED,
    "one_start": "the servers of each condition were started once; starts of one setting differ, so the conditions are "
    "judged like two runs",
    "interrupted": "{run} ended early",
    "unfinished": "{run} is unfinished",
    "others": "{run}: {percent:.0f} % of the CPUs were used by other programs than the server and the client",
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
    return fill_template(template, values).replace(" -", " −")


def word_comparison(record: Comparison) -> Comparison:
    """Return the record with its answer, control and threats in words.

    Sentences about figures are written again; sentences of threats and the control stay.
    """
    a, b = record.a.name, record.b.name
    control, verdict = record.control, record.verdict
    if control is not None and not control.text:
        control = msgspec.structs.replace(control, text=control_text(control))
    threats = word_threats(record.threats, {"a": a, "b": b})
    metrics, system = ([with_claim(metric) for metric in each] for each in (record.metrics, record.system))
    doubts = verdict.doubts
    if not verdict.text:
        doubted = find_doubts(threats, control, metrics, verdict.metric)
        doubts = [threat.text for threat in word_threats(doubted, {})]
    verdict = msgspec.structs.replace(word_answer(verdict, metrics, a, b), doubts=doubts)
    return msgspec.structs.replace(
        record, verdict=verdict, threats=threats, control=control, metrics=metrics, system=system
    )


def control_text(control: ControlRecord) -> str:
    """Return the result of the A/A control."""
    width, difference = control.half_width_percent, control.difference_percent
    if width is None:
        return "the A/A control has too few pairs to judge"
    if control.sound or difference is None:
        return f"A/A ±{width:.2g} %"
    shown = f"{difference:+.2g}".replace("-", "−")
    return f"the A/A control differs by {shown} %: another factor changes, so no verdict is reliable"


def word_answer(answer: Answer, metrics: Sequence[Metric], a: str, b: str) -> Answer:
    """Return the answer with its sentences."""
    asked = answer.asked or answer.metric
    parts = find_answer_metrics(metrics, asked)
    if parts.chosen is None:
        text = f"No answer: {noun_of(asked)} was not measured." if asked else "No answer: no metric was measured."
        return msgspec.structs.replace(answer, text=text)
    family = len(metrics)
    speed = word_side(parts.speed, b, family) if parts.speed else None
    if speed and parts.speed and parts.speed.name == "latency_p50_ms":
        p95 = metric_named(metrics, "latency_p95_ms")
        speed += f"; p95 latency: {outcome_of(p95, family).text}" if p95 else ""
    return msgspec.structs.replace(
        answer,
        text=word_difference(parts.chosen, a, b, family),
        ground=word_difference(parts.ground, a, b, family) if parts.ground else None,
        speed=speed,
        power=word_side(parts.power, b, family) if parts.power else None,
    )


def speed_and_power(comparison: Comparison) -> str:
    """Return the verdicts on speed and power as one sentence; empty without a verdict."""
    sentence = "; ".join(filter(None, (comparison.verdict.speed, comparison.verdict.power)))
    if sentence.startswith(("speed (", "power (", "the difference ")):  # Condition names keep their case.
        sentence = sentence[:1].upper() + sentence[1:]
    return f"{sentence}." if sentence else ""


def count_deciding_pairs(comparison: Comparison) -> str:
    """Return the number of pairs that would decide the answer if the difference is as measured; empty if unknown."""
    count = comparison.verdict.deciding_pairs_count
    if count is None:
        return ""
    sides = (comparison.a, comparison.b)
    names = [f"{side.workload}:{side.name}" for side in sides if side.workload != "command"]
    command = command_line("compare {} --pairs {}", names, count) if names else f"--pairs {count}"
    return f"If the difference is as measured, about {count} pairs decide: {command}"


def describe_starts(starts: object, repetitions: int) -> list[str]:
    """Return the number of starts of each condition's server, and its consequence; empty for a common server."""
    if not isinstance(starts, int) or not starts:
        return []
    judged = "" if are_starts_repeated(starts, repetitions) else ", so they are judged like saved runs"
    return [f"{plural(starts, 'start')} of each server{judged}"]
