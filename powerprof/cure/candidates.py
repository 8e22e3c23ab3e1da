# SPDX-License-Identifier: Apache-2.0
"""Remedies that can be tried live on a process: those of `diagnose`, and timer slack of threads with own timers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec
from msgspec.structs import replace

from powerprof.cure.remedies import Choice, CureRequest, FindingChoice, VariableChoice
from powerprof.cure.slack import slack_text
from powerprof.cure.threads import SlackChoice, check_owner, find_target
from powerprof.diagnosis.evidence import Diagnosis, Finding, LiveRemedy, ThreadWakeups
from powerprof.diagnosis.thread_pace import explain_no_slack, group_by_own_timer, sum_woken_hz
from powerprof.measure.target_life import raise_ended
from powerprof.model import text
from powerprof.model.text import Say
from powerprof.system import signals
from powerprof.system.errors import CapabilityError, UsageError
from powerprof.system.foreign_text import whole

# Slack of a thread that wakes up less often saves too little to try it.
_MIN_RATE_HZ = 2.0
_MAX_THREADS = 8


class Candidate(msgspec.Struct, frozen=True):
    """A remedy with the reason for it and the options that try it.

    `options` is None for a thread that wakes often if timer slack is not proposed; then `why` contains the reason.
    """

    why: str
    options: Sequence[str] | None
    pid: int
    tid: int | None = None


def list_candidates(request: CureRequest, say: Say) -> list[Candidate]:
    """Return the remedies of a process, after a window. Raise UsageError, CapabilityError, PowerprofError."""
    pid = find_target(request.pid, request.choice, only=request.only, say=say).first
    diagnosis = _diagnose(pid, request, say)
    if diagnosis.evidence.exits_hz is None and not diagnosis.findings:
        raise CapabilityError("the causes of its wake-ups are unknown without the right to trace", "run as root")
    return select_candidates(pid, diagnosis)


def select_candidates(pid: int, diagnosis: Diagnosis) -> list[Candidate]:
    """Return every fault of a diagnosis and every thread that wakes often, each with its options or the reason.

    This is the only list of remedies to try: a cause that `diagnose` calls a fault is never missing from it.
    """
    evidence = diagnosis.evidence
    candidates = list_finding_candidates(pid, diagnosis.findings)
    tids = {candidate.tid for candidate in candidates}
    threads = [
        candidate
        for candidate in list_thread_candidates(pid, evidence.wakeups, evidence.language)
        if candidate.tid not in tids
    ]
    advice = [
        Candidate(f"{number}. {finding.text}{_advice_of(finding)}", None, pid)
        for number, finding in enumerate(diagnosis.findings, 1)
        if finding.severity == "fault" and not finding.tries and not (finding.rule == "polling_wait" and threads)
    ]
    return [*candidates, *threads, *advice]


def _advice_of(finding: Finding) -> str:
    return f" Advice: {finding.remedy[0]}" if finding.remedy else ""


def _diagnose(pid: int, request: CureRequest, say: Say) -> Diagnosis:
    from powerprof.diagnosis.diagnose import DiagnosisRequest, run

    return run(
        DiagnosisRequest(
            str(pid), request.server_url, request.socket, request.defaults_file, request.window_s, request.only
        ),
        say,
    )[0]


def list_finding_candidates(pid: int, findings: Iterable[Finding]) -> list[Candidate]:
    """Return the live remedies of findings, each once."""
    candidates: dict[LiveRemedy, Candidate] = {}
    for number, finding in enumerate(findings, 1):
        for remedy in finding.tries:
            candidates.setdefault(
                remedy, Candidate(f"{number}. {finding.text}", _list_options(remedy), pid, remedy.tid)
            )
    return list(candidates.values())


def _list_options(remedy: LiveRemedy) -> list[str]:
    if remedy.variable is not None:
        return ["--set", f"{remedy.variable}={remedy.value}"]
    return ["--thread", str(remedy.tid), "--slack", slack_text(remedy.slack_ns or 0)]


def list_thread_candidates(pid: int, rows: Iterable[ThreadWakeups], language: str | None = None) -> list[Candidate]:
    """Return the threads with the most wake-ups by their own timers, which slack may combine.

    `language`: the run-time of the process, whose timers run on a few threads.
    """
    threads = group_by_own_timer(rows)
    rates = {tid: rate for tid, own in threads.items() if tid and (rate := sum_woken_hz(own)) >= _MIN_RATE_HZ}
    candidates = []
    for tid in sorted(rates, key=lambda tid: -rates[tid])[:_MAX_THREADS]:
        name = (threads[tid][-1].name or threads[tid][-1].comm).removeprefix("thread/")
        why = f"{name} (thread {tid}) wakes {text.number(rates[tid], 1)} times a second by its own timers"
        reason = explain_no_slack(threads[tid], language)
        options = ["--thread", str(tid), "--slack", "50ms"] if reason is None else None
        candidates.append(Candidate(f"{why}; {reason}" if reason else why, options, pid, tid))
    return candidates


def resolve_finding(
    request: CureRequest, check_terminal: Callable[[], None], say: Say
) -> tuple[CureRequest, list[str]]:
    """Return the request with the remedy of its finding, and the finding for the announcement.

    A request that names a finding takes a window of the process, after a call of `check_terminal`.
    Raise UsageError, CapabilityError, PowerprofError.
    """
    if not isinstance(request.choice, FindingChoice):
        return request, []
    pid = find_target(request.pid, request.choice, only=request.only, say=say).first
    check_owner(pid)
    check_terminal()
    try:
        diagnosis = _diagnose(pid, request, say)
        if diagnosis.ended:
            raise_ended(diagnosis.ended)
    finally:
        signals.release()  # Signals are held from the end of a window, but this one is not saved.
    number, finding = find_finding(request.choice.word, diagnosis.findings)
    return replace(request, pid=str(pid), choice=choice_of(finding)), [
        f"Finding {number} ({finding.rule}): {finding.text}"
    ]


def find_finding(word: str, findings: Sequence[Finding]) -> tuple[int, Finding]:
    """Return the number and the finding with this rule or number. Raise UsageError for none and for several."""
    numbered = list(enumerate(findings, 1))
    matches = [(number, finding) for number, finding in numbered if number == whole(word) or finding.rule == word]
    if not matches:
        rules = ", ".join(f"{number} {finding.rule}" for number, finding in numbered) or "nothing"
        raise UsageError(f"no finding matches {word!r}", f"found now: {rules}")
    if len(matches) > 1:
        numbers = ", ".join(str(number) for number, _ in matches)
        raise UsageError(f"{len(matches)} findings match {word}", f"name one by its number: {numbers}")
    return matches[0]


def choice_of(finding: Finding) -> Choice:
    """Return the first live remedy of a finding. Raise UsageError if it has none."""
    if not finding.tries:
        raise UsageError(
            f"the finding {finding.rule} has no remedy to try on the live server", _advice_of(finding).strip()[:300]
        )
    remedy = finding.tries[0]
    if remedy.variable is not None:
        return VariableChoice(remedy.variable, remedy.value or "")
    return SlackChoice(str(remedy.tid), remedy.slack_ns or 0)
