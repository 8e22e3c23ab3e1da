# SPDX-License-Identifier: Apache-2.0
"""What can be tried live on a process: threads that wake by their own timers, and variables that `diagnose` names."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from powerprof.cure.choices import CureRequest
from powerprof.cure.session import target_of
from powerprof.database.products.local import is_server
from powerprof.diagnosis.collect import rows_of
from powerprof.diagnosis.evidence import ThreadWakeups
from powerprof.diagnosis.findings import Finding
from powerprof.errors import CapabilityError
from powerprof.processes.languages import language_of
from powerprof.processes.targets import Target, name_of
from powerprof.text import Say, number

# Slack saves nothing worth a try on less.
_OFTEN_HZ = 2.0
_MOST = 8
_SET = re.compile(r"SET GLOBAL ([A-Za-z][A-Za-z0-9_.]{0,63}) ?= ?('[^']{0,64}'|[A-Za-z0-9_.-]{1,64})")


@dataclass(frozen=True)
class Candidate:
    """One remedy: why it may help, and the options that try it."""

    why: str
    options: str
    pid: int


def candidates(request: CureRequest, say: Say) -> list[Candidate]:
    """Look at the process for a window. Raises UsageError, CapabilityError, PowerprofError."""
    target = target_of(request.pid)
    pid = target.pids[0]
    findings: Sequence[Finding] = ()
    if is_server(name_of(pid)):
        from powerprof.diagnosis.session import DiagnosisRequest, run

        asked = DiagnosisRequest(str(pid), request.server_url, request.socket, request.defaults_file, request.window_s)
        diagnosis, _ = run(asked, say)
        findings, rows = diagnosis.findings, diagnosis.evidence.wakeups
        if diagnosis.evidence.exits_hz is None and not findings:
            raise CapabilityError("what wakes its threads is unknown without the right to trace", "run as root")
    else:
        rows = _traced(target, request, say)
    return [*of_findings(pid, findings), *([] if language_of(pid) else of_threads(pid, rows))]


def _traced(target: Target, request: CureRequest, say: Say) -> list[ThreadWakeups]:
    from powerprof.attribution import live, session
    from powerprof.attribution.requests import AttributeRequest

    taken = live.capture(target, AttributeRequest(duration_s=request.window_s), dict, say)
    return rows_of(session.analyse(taken))


def of_findings(pid: int, findings: Iterable[Finding]) -> list[Candidate]:
    """The variables that remedies set."""
    found: dict[str, Candidate] = {}
    for finding in findings:
        for remedy in finding.remedy:
            for name, value in _SET.findall(remedy):
                options = f"--set {shlex.quote(name + '=' + value.strip(chr(39)))}"
                found.setdefault(options, Candidate(finding.text, options, pid))
    return list(found.values())


def of_threads(pid: int, rows: Iterable[ThreadWakeups]) -> list[Candidate]:
    """The threads that wake most by their own timers, which slack may put together."""
    rates: dict[int, float] = {}
    names: dict[int, str] = {}
    for row in rows:
        if row.origin == "own_timer":
            rates[row.tid] = rates.get(row.tid, 0.0) + max(row.rate_hz, row.wakings_hz or 0.0)
            names[row.tid] = (row.name or row.comm).removeprefix("thread/")
    often = sorted((tid for tid, rate in rates.items() if rate >= _OFTEN_HZ), key=lambda tid: -rates[tid])
    return [
        Candidate(
            f"{names[tid]} (thread {tid}) wakes {number(rates[tid], 1)} times a second by its own timers",
            f"--thread {tid} --slack 50ms",
            pid,
        )
        for tid in often[:_MOST]
        if tid
    ]
