# SPDX-License-Identifier: Apache-2.0
"""From a request to a record: resolve the target, trace, unwind, name, blame; or analyse a saved capture again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from powerprof import paths
from powerprof.attribution import blame, capture, live, modes
from powerprof.attribution.functions import FunctionProfile
from powerprof.attribution.oncpu import OnCpuProfile
from powerprof.attribution.records import Attribution
from powerprof.attribution.sites import SiteStacks
from powerprof.attribution.sleepers import SleepsProfile, WakersProfile
from powerprof.errors import DataError, PowerprofError, UsageError
from powerprof.processes.targets import Target, resolve
from powerprof.runs import RunStore

_PAGE_KIB = 4


@dataclass(frozen=True, kw_only=True)
class AttributionRequest:
    """What the command line asks for; see `powerprof attribute --help`.

    `settle`: this process does nothing else afterwards, and may give up what root may do (`live.CapturePlan`).
    """

    words: tuple[str, ...]
    cgroup: str | None
    system: bool
    duration_s: float
    stack_buffer_kib: int = 4096
    server_url: str | None = None
    socket: Path | None = None
    defaults_file: Path | None = None
    energy_source: str = "auto"
    meter_log: Path | None = None
    from_run: str | None = None
    runs_dir: Path | None = None
    on_cpu: bool = False
    event: str = "cpu-clock"
    frequency_hz: int = 99
    functions: str | None = None
    max_functions: int = 200
    backend: str = "auto"
    unwinding_risk: bool = False
    wakers: bool = False
    sleeps: bool = False
    settle: bool = False


@dataclass(frozen=True)
class AttributionResult:
    """A record, the kind of run it is saved as, files to keep beside it, and the raw capture where there is one."""

    record: Attribution | OnCpuProfile | FunctionProfile | WakersProfile | SleepsProfile
    kind: str
    files: dict[str, bytes] | None = None
    capture: capture.Capture | None = None


def run(request: AttributionRequest, say: Callable[[str], None], consent: Callable[[str], None]) -> AttributionResult:
    """Answer the request. Raises UsageError, CapabilityError, PowerprofError, DataError.

    `consent` is told what could harm the target before it is done, and raises where that is not agreed to.
    """
    _check(request)
    if request.from_run is not None:
        return _replay(request)
    if not paths.is_this_host():
        raise PowerprofError("cannot trace a recorded host", "unset POWERPROF_SYSFS and POWERPROF_PROCFS")
    target = resolve(request.words, cgroup=request.cgroup, system=request.system)
    names = _names_of(request, target)
    if request.on_cpu:
        plan = modes.OnCpuPlan(target, request.duration_s, request.event, request.frequency_hz, request.settle)
        return AttributionResult(modes.on_cpu(plan, names, say), "oncpu")
    if request.functions is not None:
        probes = modes.FunctionsPlan(
            target,
            request.duration_s,
            request.functions,
            request.max_functions,
            request.backend,
            request.unwinding_risk,
            request.settle,
        )
        return AttributionResult(modes.functions(probes, say, consent), "functions")
    if request.wakers:
        return AttributionResult(modes.wakers(target, request.duration_s, names, say, settle=request.settle), "wakers")
    if request.sleeps:
        return AttributionResult(modes.sleeps(target, request.duration_s, names, say, settle=request.settle), "sleeps")
    taken = take(request, target, names, say)
    stacks = SiteStacks(taken)
    record = blame.attribute(taken, stacks)
    taken = msgspec.structs.replace(taken, named=stacks.named())
    return AttributionResult(record, "attribute", {capture.FILE: capture.encode(taken)}, taken)


def _asked(request: AttributionRequest) -> list[str]:
    """The questions that take the place of the default one."""
    chosen = {
        "--on-cpu": request.on_cpu,
        "--functions": request.functions is not None,
        "--wakers": request.wakers,
        "--sleeps": request.sleeps,
    }
    return [name for name, given in chosen.items() if given]


def _check(request: AttributionRequest) -> None:
    """Refuse what makes no sense together, before anything is loaded. Raises UsageError."""
    asked = _asked(request)
    if len(asked) > 1:
        raise UsageError(f"{' and '.join(asked[:2])} exclude each other", "they answer different questions")
    dtrace = request.wakers or request.sleeps
    if dtrace and request.backend == "bpf":
        raise UsageError(f"{asked[0]} is answered by DTrace only", "leave out --backend")
    if request.functions is None and request.unwinding_risk:
        raise UsageError("--allow-unwinding-risk belongs to --functions", "leave it out")
    if request.functions is None and not dtrace and request.backend != "auto":
        raise UsageError("--backend belongs to --functions, --wakers and --sleeps", "leave it out")


def take(
    request: AttributionRequest, target: Target, names: Callable[[], Mapping[int, str]], say: Callable[[str], None]
) -> capture.Capture:
    """Trace one window on this host."""
    pages = request.stack_buffer_kib // _PAGE_KIB
    if pages * _PAGE_KIB != request.stack_buffer_kib or pages & (pages - 1):
        raise UsageError(f"--stack-buffer {request.stack_buffer_kib} is not a power of two", "for example 8192")
    plan = live.CapturePlan(
        target,
        request.duration_s,
        pages,
        energy_source=request.energy_source,
        meter_log=request.meter_log,
        settle=request.settle,
    )
    return live.capture(plan, names, say)


def _names_of(request: AttributionRequest, target: Target) -> Callable[[], Mapping[int, str]]:
    """How to ask the server for its threads' names; for a server that cannot be asked there are none."""
    from powerprof.database.clients.given import connect_given

    asked = any(part is not None for part in (request.server_url, request.socket, request.defaults_file))
    if asked:
        server = connect_given(request.server_url, request.socket, request.defaults_file)
        return server.thread_names

    def quietly() -> Mapping[int, str]:
        from powerprof.database.products.local import names_of_local_server

        names: dict[int, str] = {}
        for pid in target.pids:
            names.update(names_of_local_server(pid))
        return names

    return quietly


def analyse(taken: capture.Capture) -> Attribution:
    """Unwind, name and blame."""
    return blame.attribute(taken, SiteStacks(taken))


def _replay(request: AttributionRequest) -> AttributionResult:
    if request.words or request.cgroup or request.system or _asked(request):
        raise UsageError("--from analyses a saved capture: it takes no target", "leave out all but --from and outputs")
    folder = RunStore(request.runs_dir).find(str(request.from_run))
    raw = folder if folder.name == capture.FILE else folder.parent / capture.FILE
    if not raw.is_file():
        raise DataError(folder, "there is no capture beside it")
    taken = capture.load(raw)
    name = folder.parent.name if folder.name != capture.FILE else None
    return AttributionResult(msgspec.structs.replace(analyse(taken), id=name), "attribute", None, taken)
