# SPDX-License-Identifier: Apache-2.0
"""One function a verb: resolve the target, collect, and make the record; or analyse a saved capture again.

What is needed after a window is imported after it: importing all takes as long as loading the tracer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from powerprof import paths
from powerprof.attribution import capture
from powerprof.attribution.records import Attribution
from powerprof.attribution.requests import (
    AttributeRequest,
    FunctionsRequest,
    OffCpuRequest,
    ProfileRequest,
    ServerChoice,
    SyscallRequest,
    TargetChoice,
)
from powerprof.errors import DataError, PowerprofError
from powerprof.processes.targets import Target, resolve
from powerprof.runs import RunStore
from powerprof.text import Say

if TYPE_CHECKING:
    from powerprof.attribution.functions import FunctionProfile
    from powerprof.attribution.modes import Consent
    from powerprof.attribution.offcpu import OffCpuProfile
    from powerprof.attribution.oncpu import OnCpuProfile
    from powerprof.attribution.syscalls import SyscallProfile
    from powerprof.stacks.store import TableStore


@dataclass(frozen=True)
class AttributionResult:
    """A record and the raw capture that it was made from. `is_kept`: that is saved already."""

    record: Attribution
    capture: capture.Capture
    is_kept: bool = False

    def files(self) -> dict[str, bytes] | None:
        """What to keep with the record; made when it is asked for, because it is large."""
        return None if self.is_kept else {capture.FILE: capture.encode(self.capture)}


def attribute(
    chosen: TargetChoice, server: ServerChoice, request: AttributeRequest, say: Say, store: TableStore | None = None
) -> AttributionResult:
    """Trace one window on this host; `store` is where symbols come from. Raises UsageError, CapabilityError,
    PowerprofError.
    """
    from powerprof.attribution import live

    target = _resolved(chosen)
    taken = live.capture(target, request, _names_of(server, target), say)
    from powerprof.attribution import blame
    from powerprof.attribution.sites import SiteStacks
    from powerprof.stacks.remedies import missing_names

    stacks = SiteStacks(taken, store)
    record = blame.attribute(taken, stacks)
    named = stacks.named()
    # With its tables: what follows takes as much again.
    del stacks
    stacks_shown = [row.stack for rows in (record.wakeups, record.wakings_without_exit) for row in rows]
    frames = [(frame.module, frame.function is not None) for stack in stacks_shown for frame in stack]
    missing = missing_names(frames, taken.images)
    if missing is not None:
        record = msgspec.structs.replace(record, notes=[*record.notes, missing])
        taken = msgspec.structs.replace(taken, notes=[*taken.notes, missing])
    taken = msgspec.structs.replace(taken, named=named)
    return AttributionResult(record, taken)


def profile(chosen: TargetChoice, server: ServerChoice, request: ProfileRequest, say: Say) -> OnCpuProfile:
    """Sample one window. Raises UsageError, CapabilityError, PowerprofError."""
    from powerprof.attribution import modes

    target = _resolved(chosen)
    return modes.on_cpu(target, request, _names_of(server, target), say)


def functions(chosen: TargetChoice, request: FunctionsRequest, say: Say, consent: Consent) -> FunctionProfile:
    """Probe one window. `consent` is called with what could harm the target before it is done, and raises where that is
    not agreed to.

    Raises UsageError, CapabilityError, PowerprofError, and what `consent` raises.
    """
    from powerprof.attribution import modes

    return modes.functions(_resolved(chosen), request, say, consent)


def off_cpu(chosen: TargetChoice, server: ServerChoice, request: OffCpuRequest, say: Say) -> OffCpuProfile:
    """Trace one window of sleeps and wakings. Raises UsageError, CapabilityError, PowerprofError."""
    from powerprof.attribution import modes

    target = _resolved(chosen)
    return modes.off_cpu(target, request, _names_of(server, target), say)


def syscalls(chosen: TargetChoice, server: ServerChoice, request: SyscallRequest, say: Say) -> SyscallProfile:
    """Count one window of system calls. Raises UsageError, CapabilityError, PowerprofError."""
    from powerprof.attribution import modes

    target = _resolved(chosen)
    return modes.syscalls(target, request, _names_of(server, target), say)


def replay(name: str, runs_dir: Path | None) -> AttributionResult:
    """Analyse a saved capture again. Raises UsageError, DataError."""
    folder = RunStore(runs_dir).find(name)
    raw = folder if folder.name == capture.FILE else folder.parent / capture.FILE
    if not raw.is_file():
        raise DataError(folder, "has no trace; only runs of attribute have one", hint="powerprof runs lists them")
    taken = capture.load(raw)
    run_id = folder.parent.name if folder.name != capture.FILE else None
    return AttributionResult(msgspec.structs.replace(analyse(taken), id=run_id), taken, is_kept=True)


def analyse(taken: capture.Capture) -> Attribution:
    """Unwind, name and blame."""
    from powerprof.attribution import blame
    from powerprof.attribution.sites import SiteStacks

    return blame.attribute(taken, SiteStacks(taken))


def _resolved(chosen: TargetChoice) -> Target:
    if not paths.is_this_host():
        raise PowerprofError("cannot trace a recorded host", "unset POWERPROF_SYSFS and POWERPROF_PROCFS")
    return resolve(tuple(chosen.pid or ()), cgroup=chosen.cgroup, system=chosen.system)


def _names_of(server: ServerChoice, target: Target) -> Callable[[], Mapping[int, str]]:
    """How to ask the server for its threads' names; for a server that cannot be asked there are none."""
    from powerprof.database.clients.given import connect_given

    if any(part is not None for part in (server.server, server.socket, server.defaults_file)):
        return connect_given(server.server, server.socket, server.defaults_file).thread_names

    def quietly() -> Mapping[int, str]:
        from powerprof.database.products.local import names_of_local_server

        names: dict[int, str] = {}
        for pid in target.pids:
            names.update(names_of_local_server(pid))
        return names

    return quietly
