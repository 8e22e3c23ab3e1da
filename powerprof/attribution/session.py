"""From a request to an attribution: resolve the target, capture, unwind, name, blame; or replay a saved capture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from powerprof import paths
from powerprof.attribution import blame, capture, live
from powerprof.attribution.records import Attribution
from powerprof.attribution.sites import SiteStacks
from powerprof.errors import DataError, PowerprofError, UsageError
from powerprof.runs import RunStore
from powerprof.tracing.targets import Target, resolve

_PAGE_KIB = 4
_SERVERS = ("mysqld", "mariadbd")


@dataclass(frozen=True)
class Request:
    """What the command line asks for."""

    words: tuple[str, ...]
    cgroup: str | None
    system: bool
    duration_s: float
    stack_buffer_kib: int
    server_url: str | None = None
    socket: Path | None = None
    defaults_file: Path | None = None
    energy_source: str = "auto"
    meter_log: Path | None = None


def take(request: Request, say: Callable[[str], None]) -> capture.Capture:
    """Trace one window on this host."""
    if not paths.is_this_host():
        raise PowerprofError("cannot trace a recorded host", "unset POWERPROF_SYSFS and POWERPROF_PROCFS")
    pages = request.stack_buffer_kib // _PAGE_KIB
    if pages * _PAGE_KIB != request.stack_buffer_kib or pages & (pages - 1):
        raise UsageError(f"--stack-buffer {request.stack_buffer_kib} is not a power of two", "for example 16384")
    target = resolve(request.words, cgroup=request.cgroup, system=request.system)
    plan = live.CapturePlan(
        target, request.duration_s, pages, energy_source=request.energy_source, meter_log=request.meter_log
    )
    return live.capture(plan, _names_of(request, target), say)


def _names_of(request: Request, target: Target) -> Callable[[], Mapping[int, str]]:
    """How to ask the server for its threads' names; for a server that cannot be asked there are none."""
    from powerprof.database.client import connect_given

    asked = any(part is not None for part in (request.server_url, request.socket, request.defaults_file))
    if asked:
        server = connect_given(request.server_url, request.socket, request.defaults_file)
        return server.thread_names

    def quietly() -> Mapping[int, str]:
        from powerprof.database.local import names_of_local_server

        found: dict[int, str] = {}
        for pid in target.pids:
            found.update(names_of_local_server(pid))
        return found

    return quietly


def analyse(taken: capture.Capture) -> Attribution:
    """Unwind, name and blame."""
    return blame.attribute(taken, SiteStacks(taken))


def replay(name: str, runs_dir: Path | None) -> Attribution:
    """The attribution of a saved run's capture. Raises UsageError, DataError."""
    found = RunStore(runs_dir).find(name)
    raw = found if found.name == capture.FILE else found.parent / capture.FILE
    if not raw.is_file():
        raise DataError(found, "there is no capture beside it")
    record = analyse(capture.load(raw))
    return msgspec.structs.replace(record, id=found.parent.name if found.name != capture.FILE else None)
