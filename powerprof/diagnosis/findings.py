# SPDX-License-Identifier: Apache-2.0
"""What a diagnosis says: `powerprof.diagnosis/1`."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from powerprof.diagnosis.evidence import Evidence
from powerprof.records import Notes, ToolCost

Severity = Literal["fault", "note"]


class LiveRemedy(msgspec.Struct, frozen=True, kw_only=True):
    """What `cure` can try on the live server: the timer slack of thread `tid` in ns, a value of `variable`, or event
    `event` of schema `database`, disabled."""

    tid: int | None = None
    slack_ns: int | None = None
    variable: str | None = None
    value: str | None = None
    database: str | None = None
    event: str | None = None


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a server wakes for: a sentence, what shows it, and what ends it.

    A fault should be mended; a note says what a healthy server does. `rate_hz` is how often it happens. `tries` are
    remedies that can be tried live, the first one first.
    """

    rule: str
    severity: Severity
    text: str
    evidence: list[str]
    remedy: list[str]
    rate_hz: float | None = None
    stack: list[str] = []
    tries: list[LiveRemedy] = []


class DiagnosedServer(msgspec.Struct, frozen=True, kw_only=True):
    """Which server was looked at; None where unknown."""

    pid: int | None
    version: str
    address: str | None


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The findings, faults first, and all that they rest on. `not_looked_at`: what was not examined, and why."""

    id: str | None
    started_at: str
    server: DiagnosedServer
    findings: list[Finding]
    evidence: Evidence
    looked_at: list[str] = []
    not_looked_at: list[str] = []
    host: dict[str, Any] = {}
    tool: ToolCost | None = None
    notes: Notes = []
    interrupted: bool = False
    command: str = "diagnose"
    schema: Literal["powerprof.diagnosis/1"] = "powerprof.diagnosis/1"
