# SPDX-License-Identifier: Apache-2.0
"""From what the command line names to a diagnosis."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from powerprof import paths
from powerprof.diagnosis.collect import Look, Subject, look
from powerprof.diagnosis.findings import DiagnosedServer, Diagnosis
from powerprof.diagnosis.looked import looked
from powerprof.diagnosis.rules import diagnose
from powerprof.errors import CapabilityError, PowerprofError, UsageError
from powerprof.processes.targets import Target, describe, name_of, resolve


@dataclass(frozen=True)
class DiagnosisRequest:
    """Whom to look at: a process, a server by its address, or both."""

    pid: str | None
    server_url: str | None
    socket: Path | None
    defaults_file: Path | None
    duration_s: float


def run(request: DiagnosisRequest, say: Callable[[str], None]) -> tuple[Diagnosis, Look]:
    """Look at the server and judge. Raises UsageError, CapabilityError, PowerprofError."""
    from powerprof.host.describe import host_record
    from powerprof.windows.sampling import now_text

    started_at = now_text()
    with ExitStack() as stack:
        notes: list[str] = []
        subject = _subject(request, stack, notes)
        taken = look(subject, request.duration_s, say)
        if taken.attribution is None and subject.connection is None:
            raise CapabilityError(
                f"{subject.label} can neither be traced nor asked: {'; '.join(taken.evidence.notes[:1])}",
                "run as root, or name an account with --defaults-file",
            )
    attribution, seen = taken.attribution, looked(taken.evidence)
    diagnosis = Diagnosis(
        id=None,
        started_at=started_at,
        findings=diagnose(taken.evidence),
        evidence=taken.evidence,
        looked_at=seen.at,
        not_looked_at=seen.not_at,
        server=DiagnosedServer(pid=subject.pid, version=subject.version, address=subject.address),
        host=host_record(),
        tool=attribution.tool if attribution else None,
        notes=notes,
        interrupted=taken.interrupted,
    )
    return diagnosis, taken


def _first(target: Target) -> int:
    """The process that is the server: of one that works in processes, that which started the others."""
    if len(target.pids) == 1:
        return target.pids[0]
    if len(target.roots) == 1:
        return target.roots[0]
    shown = "; ".join(describe(pid) for pid in target.pids[:8])
    raise UsageError(f"one server at a time: {shown}", f"name one with --pid {target.pids[0]}, by its number")


def _subject(request: DiagnosisRequest, stack: ExitStack, notes: list[str]) -> Subject:
    asked = any(part is not None for part in (request.server_url, request.socket, request.defaults_file))
    pid, target = None, None
    if request.pid is not None:
        if not paths.is_this_host():
            raise PowerprofError("cannot look at a recorded host", "unset POWERPROF_SYSFS and POWERPROF_PROCFS")
        target = resolve([request.pid])
        pid = _first(target)
    elif not asked:
        raise UsageError("say which server", "--pid mysqld, --socket PATH or --server mysql://user@host/")
    if asked:
        from powerprof.database.clients import sql
        from powerprof.database.clients.given import connect_given

        server = stack.enter_context(connect_given(request.server_url, request.socket, request.defaults_file))
        connection = stack.enter_context(server.connect(limits=sql.A_LOOK))
        if pid is not None and server.pid is not None and pid != server.pid:
            raise UsageError(f"--pid is {pid}, but the server that was named is process {server.pid}", "leave one out")
        own = pid if pid is not None else server.pid
        return Subject(
            own, name_of(own) or "the server" if own else "the server", connection, server.version, server.login.text
        )
    if pid is None:
        raise UsageError("say which server", "--pid mysqld, --socket PATH or --server mysql://user@host/")
    label = name_of(pid) or str(pid)
    from powerprof.database.products.local import enter, is_server

    entered = enter(pid)
    if entered is None:
        if not is_server(label):
            shown = target.label if target is not None else label
            return Subject(pid, shown, None, shown, None, target)
        notes.append(
            "the server does not let this user in by its socket: only its wake-ups were looked at "
            "(name an account with --defaults-file)"
        )
        return Subject(pid, label, None, label, None)
    from powerprof.database.clients.given import version_of

    own_connection = stack.enter_context(entered[1])
    return Subject(pid, label, own_connection, version_of(own_connection), None)
