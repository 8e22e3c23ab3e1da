# SPDX-License-Identifier: Apache-2.0
"""The names of functions that the programs of a target or a saved run have, for `doctor --pid`."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from powerprof.attribution import attribute
from powerprof.attribution.requests import AttributeRequest
from powerprof.host.capabilities import Capability
from powerprof.model import text
from powerprof.model.attribution import Attribution, StackFrame
from powerprof.model.text import Say
from powerprof.stacks import debuginfod
from powerprof.stacks.file_names import FileNames, is_complete, mapped_files, survey_names
from powerprof.stacks.image import ProcessImage, snapshot
from powerprof.stacks.remedies import Remedies
from powerprof.stacks.store import TableStore
from powerprof.system.errors import Declined, PowerprofError, UsageError
from powerprof.system.next_steps import command_line
from powerprof.system.targets import ServerChoice, TargetChoice, resolve_target

_LIBRARIES = ("libc.", "libc-", "ld-", "libpthread", "libstdc++", "[vdso]", "[vsyscall]")
# Functions of a program that wait on behalf of their caller, so the caller is to blame.
_WRAPPERS = re.compile(
    r"(psi_|inline_mysql_|mysql_(cond|mutex|rwlock)|my_cond|safe_(cond|mutex)|native_cond|std::|__)"
    r"|(WaitEventSetWait|WaitLatch|WaitLatchOrSocket|ConditionVariable(Timed)?Sleep|PGSemaphoreLock|pg_usleep)$"
)


def is_own(frame: StackFrame) -> bool:
    """Return whether a frame belongs neither to the C or C++ library nor to the vdso."""
    return not frame.module.startswith(_LIBRARIES)


def only_waits(frame: StackFrame) -> bool:
    """Return whether a frame's function is known to wait on behalf of its caller."""
    return _WRAPPERS.match(frame.function or "") is not None


def find_blamed_frame(stack: Sequence[StackFrame]) -> StackFrame | None:
    """Return the innermost frame of the program's own that does not only wait; None without a stack."""
    own_frames = [frame for frame in stack if is_own(frame)]
    working = [frame for frame in own_frames if not only_waits(frame)]
    return next(iter([*working, *own_frames, *stack]), None)


# Returns whether the user agrees to the described download.
Consent = Callable[[str], bool]
_MOST_PROCESSES = 64
# A server's debug file has some hundred MB.
_PATIENCE_S = 3600.0


class SymbolFile(msgspec.Struct, frozen=True, kw_only=True):
    """A mapped file, and the source of its missing names.

    Attributes:
        wakeups_percent, unnamed_wakeups_percent: wake-ups with a frame in the file; with an unnamed one.
        package: of apt, with its debug file.
        fetched: a server had its debug file; None if no server was queried.
    """

    path: str
    module: str
    build_id: str | None
    names_from: str | None
    debug_from: str | None
    functions_count: int | None
    named_count: int | None
    wakeups_percent: float | None
    unnamed_wakeups_percent: float | None
    package: str | None
    note: str | None
    fetched: bool | None = None

    @property
    def is_complete(self) -> bool:
        """Whether a debug file cannot add names."""
        return is_complete(self.names_from, self.debug_from, self.functions_count)


class Symbols(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a target's processes. `command` gets the missing names; `notes` has failures of servers.

    Attributes:
        wakeups_named_percent: wake-ups whose blamed function has a name; null without a trace.
        server: of a database server, what works on its release.
    """

    label: str
    pids: list[int]
    files: list[SymbolFile]
    wakeups_count: int | None
    wakeups_named_percent: float | None
    command: str | None
    run: str | None = None
    notes: list[str] = []
    server: list[Capability] = []
    schema: Literal["powerprof.symbols/1"] = "powerprof.symbols/1"


class SymbolsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for the names of a target, or of a saved run. `duration_s`: length of a trace of wake-ups."""

    run: str | None = None
    runs_dir: Path | None = None
    duration_s: float | None = None
    fetch: bool = False


class _NoServerChosen(msgspec.Struct, frozen=True):
    server: str | None = None
    socket: Path | None = None
    defaults_file: Path | None = None


_NO_SERVER: ServerChoice = _NoServerChosen()


def find_symbols(chosen: TargetChoice, request: SymbolsRequest, say: Say, consent: Consent) -> Symbols:
    """Return the names of a target; fetch debug files on request and with consent.

    Raises UsageError, CapabilityError, PowerprofError.
    """
    if request.fetch and not debuginfod.configured_servers():
        raise UsageError(
            "--fetch needs a server in DEBUGINFOD_URLS",
            f"for the whole command, leave out --fetch: {command_line('doctor', same_target=True)}",
        )
    label, images, record = _read_images(chosen, request, say)
    files = _MappedFiles(images, record)
    fetched: dict[str, bool] = {}
    downloads = debuginfod.FetchRequest(time.monotonic() + _PATIENCE_S)
    if request.fetch:
        fetched = _fetch(files, downloads, say, consent)
        files = _MappedFiles(images, record)
    return Symbols(
        label=label,
        pids=[image.pid for image in images],
        files=files.records(fetched),
        wakeups_count=files.wakeups_count,
        wakeups_named_percent=files.named_percent,
        command=files.remedies.command(asked=request.fetch),
        run=request.run,
        notes=list(downloads.problems),
    )


def _read_images(
    chosen: TargetChoice, request: SymbolsRequest, say: Say
) -> tuple[str, list[ProcessImage], Attribution | None]:
    if request.run is not None:
        if chosen.pid or chosen.cgroup or chosen.system:
            raise UsageError("a saved run and a target exclude each other", "leave one of the two out")
        saved = attribute.replay(request.run, request.runs_dir)
        return saved.record.target.label, saved.capture.images, saved.record
    if request.duration_s is not None:
        traced = attribute.attribute(
            chosen, _NO_SERVER, AttributeRequest(duration_s=request.duration_s), say, TableStore(downloads=False)
        )
        return traced.record.target.label, traced.capture.images, traced.record
    target = resolve_target(chosen, say, may_be_stopped=True)
    if target.system or len(target.roots or target.pids) > _MOST_PROCESSES:
        raise UsageError(
            f"doctor --pid looks at up to {_MOST_PROCESSES} processes", "choose some by --pid, or add --duration 5"
        )
    return target.label, [snapshot(pid) for pid in target.pids[:_MOST_PROCESSES]], None


class _MappedFiles:
    """The files of some processes, with the counts of wake-ups that pass through them."""

    def __init__(self, images: Sequence[ProcessImage], record: Attribution | None) -> None:
        store = TableStore(downloads=False)
        self._through, self._unnamed, named = dict[str, int](), dict[str, int](), 0
        self.wakeups_count: int | None = None
        for stack, count in _stacks(record) if record is not None else ():
            self.wakeups_count = (self.wakeups_count or 0) + count
            blamed = find_blamed_frame(stack)
            named += count if blamed is not None and blamed.function is not None else 0
            for counts, frames in ((self._through, stack), (self._unnamed, [f for f in stack if f.function is None])):
                for module in {frame.module for frame in frames}:
                    counts[module] = counts.get(module, 0) + count
        self.named_percent = 100.0 * named / self.wakeups_count if self.wakeups_count else None
        files: dict[tuple[str, str | None], FileNames] = {}
        for image in images:
            mappings = mapped_files(image, lambda module: self.wakeups_count is None or module in self._through)
            fresh = [mapping for mapping in mappings if (mapping.path, mapping.build_id) not in files]
            files.update({(file.path, file.build_id): file for file in survey_names(image, fresh, store)})
        self._files = sorted(files.values(), key=lambda file: -self._unnamed.get(file.module, 0))
        lacking = [file for file in self._files if self.wakeups_count is None or self._unnamed.get(file.module, 0)]
        self.remedies = Remedies(images[0].pid if images else 0, lacking)

    def _share(self, counts: dict[str, int], module: str) -> float | None:
        return 100.0 * counts.get(module, 0) / self.wakeups_count if self.wakeups_count else None

    def records(self, fetched: dict[str, bool]) -> list[SymbolFile]:
        """Return the files of the record; `fetched` maps requested build ids to whether a server had them."""
        records = []
        for file in self._files:
            package = None if file.is_complete else self.remedies.package(file)
            records.append(
                SymbolFile(
                    path=file.path,
                    module=file.module,
                    build_id=file.build_id,
                    names_from=file.names_from,
                    debug_from=file.debug_from,
                    functions_count=file.functions_count,
                    named_count=file.named_count,
                    wakeups_percent=self._share(self._through, file.module),
                    unnamed_wakeups_percent=self._share(self._unnamed, file.module),
                    package=package,
                    note=file.note,
                    fetched=fetched.get(file.build_id or ""),
                )
            )
        return records


def _stacks(record: Attribution) -> Iterable[tuple[list[StackFrame], int]]:
    """Yield the stacks of wake-ups with their counts, on idle and on running CPUs."""
    for row in record.wakeups:
        if row.stack:
            yield row.stack, max(row.count, row.wakings_count or 0)
    for waking in record.wakings_without_exit:
        if waking.stack:
            yield waking.stack, waking.wakings_count


def _fetch(mapped: _MappedFiles, downloads: debuginfod.FetchRequest, say: Say, consent: Consent) -> dict[str, bool]:
    """Fetch the missing debug files; return for each build id whether a server had it.

    Raises PowerprofError without consent, or if servers failed and no file was fetched.
    """
    files = {file.build_id: file.module for file in mapped.remedies.files if file.build_id}
    if not files:
        return {}
    few = list(files.values())[:3]
    more = [text.plural(len(files) - 3, "more file")] if len(files) > 3 else []
    hosts = text.join_words(debuginfod.configured_servers())
    if not consent(f"{hosts}: debug files of {text.join_words([*few, *more])}, up to 1 GiB each"):
        raise Declined("Declined: nothing was fetched.")
    fetched = {}
    for build_id, module in files.items():
        say(f"asking for the debug file of {module}")
        fetched[build_id] = debuginfod.fetch(build_id, downloads) is not None
    if downloads.problems and not any(fetched.values()):
        raise PowerprofError(
            f"nothing was fetched: {next(iter(downloads.problems))}", "name other servers, or try later"
        )
    return fetched
