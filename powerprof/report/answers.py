# SPDX-License-Identifier: Apache-2.0
"""Sentences about comparisons: the difference between two conditions, its threats, speed and power."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from powerprof.experiment.records import Metric, Threat
from powerprof.report.labels import UNPAIRED, fill_template

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
    "unpaired": UNPAIRED,
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


@dataclass(frozen=True)
class MetricPhrase:
    """A metric in a sentence: its noun, the phrase for N times as much, and the phrase for N % more or less."""

    noun: str
    times: str
    percent: str


def _usage(noun: str, thing: str, verb: str = "uses") -> MetricPhrase:
    return MetricPhrase(noun, f"{verb} {{}} times as much {thing} as", f"{verb} {{}} % {{}} {thing} than")


PHRASES = {
    "c0_ms_per_query_server": _usage("the server's CPU time per query", "server CPU time per query"),
    "c0_ms_per_query": _usage("the CPU time per query", "CPU time per query"),
    "c0_ms_per_query_net": _usage("the CPU time per query, net of idle", "CPU time per query, net of idle,"),
    "joules_per_query": _usage("the energy per query", "energy per query"),
    "joules_per_query_net": _usage("the energy per query, net of idle", "energy per query, net of idle,"),
    "joules_per_execution": _usage("the energy of an execution", "energy"),
    "joules_per_execution_net": _usage("the energy of an execution, net of idle", "energy, net of idle,"),
    "cpu_s_per_execution": _usage("the CPU time of an execution", "CPU time"),
    "time_s_per_execution": MetricPhrase(
        "the time of an execution", "takes {} times as long as", "takes {} % {} time than"
    ),
    "wakeups_per_query": MetricPhrase(
        "the wake-ups per query",
        "wakes a CPU {} times as often per query as",
        "wakes a CPU {} % {} often per query than",
    ),
    "latency_p95_ms": MetricPhrase(
        "the p95 latency", "has {} times the p95 latency of", "has {} % {} p95 latency than"
    ),
    "c0_percent": MetricPhrase(
        "the time in C0", "keeps the CPUs in C0 {} times as long as", "keeps the CPUs in C0 for {} % {} time than"
    ),
    "wakeups_hz": MetricPhrase(
        "the wake-ups per second", "wakes the CPUs {} times as often as", "wakes the CPUs {} % {} often than"
    ),
    "watts": _usage("the power", "power", "draws"),
}


def words(name: str) -> str:
    """Return the metric's noun for a sentence, or its name if it has no noun."""
    return PHRASES[name].noun if name in PHRASES else name


# An interval wider than the figure is no bound.
NO_BOUND_PERCENT = 100.0


def may_be_chance(metric: Metric) -> bool:
    """Return whether the 95 % interval excludes 0, but the stricter test of a report finds no difference."""
    ends = metric.difference.ci95
    return ends is not None and not ends[0] <= 0 <= ends[1] and metric.verdict == "inconclusive"
