# SPDX-License-Identifier: Apache-2.0
"""What can be tried live on a process: what `diagnose` found, and threads that wake by their own timers."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from powerprof.cure.remedies import Choice, CureRequest, EventChoice, FindingChoice, VariableChoice
from powerprof.cure.threads import SlackChoice, check_owner, resolve_target, slack_text
from powerprof.database.clients.given import is_server_name
from powerprof.diagnosis.collect import list_thread_wakeups
from powerprof.diagnosis.evidence import Diagnosis, Finding, LiveRemedy, ThreadWakeups
from powerprof.model import text
from powerprof.model.text import Say
from powerprof.system import signals
from powerprof.system.errors import CapabilityError, UsageError
from powerprof.system.files import whole
from powerprof.system.processes import Target, language_of, name_of

# Slack saves nothing worth a try on less.
_OFTEN_HZ = 2.0
_MOST = 8


@dataclass(frozen=True)
class Candidate:
    """One remedy: why it may help, and the options that try it."""

    why: str
    options: str
    pid: int
    tid: int | None = None


def list_candidates(request: CureRequest, say: Say) -> list[Candidate]:
    """Look at the process for a window. Raises UsageError, CapabilityError, PowerprofError."""
    target = resolve_target(request.pid)
    pid = target.pids[0]
    findings: Sequence[Finding] = ()
    if is_server_name(name_of(pid)):
        diagnosis = _diagnosed(pid, request, say)
        findings, rows = diagnosis.findings, diagnosis.evidence.wakeups
        if diagnosis.evidence.exits_hz is None and not findings:
            raise CapabilityError("what wakes its threads is unknown without the right to trace", "run as root")
    else:
        rows = _traced(target, request, say)
    listed = list_finding_candidates(pid, findings)
    tried = {one.tid for one in listed}
    threads = [] if language_of(pid) else list_thread_candidates(pid, rows)
    return [*listed, *(one for one in threads if one.tid not in tried)]


def _traced(target: Target, request: CureRequest, say: Say) -> list[ThreadWakeups]:
    from powerprof.attribution import attribute
    from powerprof.attribution.requests import AttributeRequest

    taken = attribute.trace_target(target, AttributeRequest(duration_s=request.window_s), dict, say)
    return list_thread_wakeups(attribute.analyse(taken))


def list_finding_candidates(pid: int, findings: Iterable[Finding]) -> list[Candidate]:
    """The remedies of findings that can be tried live, each once; a finding's first one by its number."""
    found: dict[LiveRemedy, Candidate] = {}
    for number, finding in enumerate(findings, 1):
        for place, one in enumerate(finding.tries):
            if one.event is not None and place:
                continue  # by --finding the first remedy alone can be named
            found.setdefault(one, Candidate(f"{number}. {finding.text}", _options(one, number), pid, one.tid))
    return list(found.values())


def _options(one: LiveRemedy, number: int) -> str:
    if one.variable is not None:
        return f"--set {shlex.quote(f'{one.variable}={one.value}')}"
    if one.tid is not None and one.slack_ns is not None:
        return f"--thread {one.tid} --slack {slack_text(one.slack_ns)}"
    return f"--finding {number}"


def find_remedy(word: str, findings: Sequence[Finding]) -> Choice:
    """The first remedy of the finding that is called so. Raises UsageError for none, for several, and for one that has
    no remedy to be tried live."""
    place = whole(word)
    found = [one for number, one in enumerate(findings, 1) if place == number or one.rule == word]
    if not found:
        rules = ", ".join(f"{number} {one.rule}" for number, one in enumerate(findings, 1)) or "nothing"
        raise UsageError(f"no finding is called {word!r}", f"found now: {rules}")
    if len(found) > 1:
        numbers = ", ".join(str(number) for number, one in enumerate(findings, 1) if one.rule == word)
        raise UsageError(f"{len(found)} findings are {word}", f"name one by its number: {numbers}")
    if not found[0].tries:
        what = f": {found[0].remedy[0]}" if found[0].remedy else ""
        raise UsageError(
            f"the finding {found[0].rule} has no remedy that can be tried live", f"what it says{what}"[:300]
        )
    one = found[0].tries[0]
    if one.database is not None and one.event is not None:
        return EventChoice(one.database, one.event)
    if one.variable is not None:
        return VariableChoice(one.variable, one.value or "")
    return SlackChoice(str(one.tid), one.slack_ns or 0)


def resolve_finding(request: CureRequest, say: Say) -> tuple[CureRequest, list[str]]:
    """The request with the remedy of the finding that it names, for which the process is looked at for a window; and
    that finding, to be printed before anything is changed. Raises UsageError, CapabilityError, PowerprofError."""
    if not isinstance(request.choice, FindingChoice):
        return request, []
    pid = resolve_target(request.pid).pids[0]
    check_owner(pid)
    try:
        diagnosis = _diagnosed(pid, request, say)
        if diagnosis.interrupted:
            raise signals.interruption()
        findings = diagnosis.findings
    finally:
        signals.release()  # signals wait from the end of a window: nothing is to be saved of this one
    choice = find_remedy(request.choice.word, findings)
    number = next(n for n, one in enumerate(findings, 1) if request.choice.word in (str(n), one.rule))
    return replace(request, choice=choice), [
        f"Finding {number} ({findings[number - 1].rule}): {findings[number - 1].text}"
    ]


def _diagnosed(pid: int, request: CureRequest, say: Say) -> Diagnosis:
    from powerprof.diagnosis.diagnose import DiagnosisRequest, run

    asked = DiagnosisRequest(str(pid), request.server_url, request.socket, request.defaults_file, request.window_s)
    return run(asked, say)[0]


def list_thread_candidates(pid: int, rows: Iterable[ThreadWakeups]) -> list[Candidate]:
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
            f"{names[tid]} (thread {tid}) wakes {text.number(rates[tid], 1)} times a second by its own timers",
            f"--thread {tid} --slack 50ms",
            pid,
            tid,
        )
        for tid in often[:_MOST]
        if tid
    ]
