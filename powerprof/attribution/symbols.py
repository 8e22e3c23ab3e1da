# SPDX-License-Identifier: Apache-2.0
"""Which names the programs of a target or a saved run have, how many wake-ups they name, and what brings the rest."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from powerprof.attribution import attribute
from powerprof.attribution.requests import AttributeRequest, ServerChoice, TargetChoice
from powerprof.model import text
from powerprof.model.attribution import Attribution, StackFrame
from powerprof.model.text import Say
from powerprof.stacks import debuginfo
from powerprof.stacks.image import ProcessImage, snapshot
from powerprof.stacks.packages import FileNames, Remedies, is_complete, mapped_files, survey_names
from powerprof.stacks.store import TableStore
from powerprof.system.errors import PowerprofError, UsageError
from powerprof.system.processes import resolve

# Which frames of a stack are the program's own, and which of them only wait for their caller.

_LIBRARIES = ("libc.", "libc-", "ld-", "libpthread", "libstdc++", "[vdso]", "[vsyscall]")
# Functions that only wait for their caller, in a program's own code: what waits is the caller.
_WRAPPERS = re.compile(r"(psi_|inline_mysql_|mysql_(cond|mutex|rwlock)|my_cond|safe_(cond|mutex)|native_cond|std::|__)")


def is_own(frame: StackFrame) -> bool:
    """Whether it is neither the C or C++ library's nor the kernel's door."""
    return not frame.module.startswith(_LIBRARIES)


def only_waits(frame: StackFrame) -> bool:
    """Whether it is known, by its name, to wait for whoever called it."""
    return _WRAPPERS.match(frame.function or "") is not None


def find_blamed_frame(stack: Sequence[StackFrame]) -> StackFrame | None:
    """The frame to blame, named or not: the innermost that is the program's own and works; None without a stack."""
    own = [frame for frame in stack if is_own(frame)]
    working = [frame for frame in own if not only_waits(frame)]
    return next(iter([*working, *own, *stack]), None)


# True where the download that its text describes may be made.
Consent = Callable[[str], bool]
_MOST_PROCESSES = 64
# A server's debug file has hundreds of MB.
_PATIENCE_S = 3600.0


class SymbolFile(msgspec.Struct, frozen=True, kw_only=True):
    """One mapped file: `FileNames`, and who has the rest.

    `wakeups_percent` is the share of wake-ups with a frame in it, `unnamed_wakeups_percent` with one that has no name;
    None without a trace. `package` is the package with its debug file, as the distribution calls it. `fetched`: whether
    a server had its debug file, None where none was asked.
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
        """Whether a debug file can add no names."""
        return is_complete(self.names_from, self.debug_from, self.functions_count)


class Symbols(msgspec.Struct, frozen=True, kw_only=True):
    """`powerprof.symbols/1`: the files of a target's processes, each once.

    `wakeups_named_percent` is the share of `wakeups_count` whose function to blame (`places.place_of`) has a name; None
    without a trace. `command` brings the names that files lack, None where none is known to. `notes`: why servers could
    not be asked.
    """

    label: str
    pids: list[int]
    files: list[SymbolFile]
    wakeups_count: int | None
    wakeups_named_percent: float | None
    command: str | None
    run: str | None = None
    notes: list[str] = []
    schema: Literal["powerprof.symbols/1"] = "powerprof.symbols/1"


@dataclass(frozen=True, kw_only=True)
class SymbolsRequest:
    """What to look at: a target, or a saved run. `duration_s`: a trace of so long says which names matter."""

    run: str | None = None
    runs_dir: Path | None = None
    duration_s: float | None = None
    fetch: bool = False


@dataclass(frozen=True)
class _NoServerChosen:
    server: str | None = None
    socket: Path | None = None
    defaults_file: Path | None = None


_NO_SERVER: ServerChoice = _NoServerChosen()


def find_symbols(chosen: TargetChoice, request: SymbolsRequest, say: Say, consent: Consent) -> Symbols:
    """Look, and fetch where that is asked for and agreed to. Raises UsageError, CapabilityError, PowerprofError."""
    if request.fetch and not debuginfo.configured_servers():
        raise UsageError(
            "--fetch needs a server in DEBUGINFOD_URLS", "powerprof symbols without --fetch prints the whole command"
        )
    label, images, record = _looked_at(chosen, request, say)
    found = _FilesFound(images, record)
    fetched: dict[str, bool] = {}
    asked = debuginfo.FetchRequest(time.monotonic() + _PATIENCE_S)
    if request.fetch:
        fetched = _fetch(found, asked, say, consent)
        found = _FilesFound(images, record)
    return Symbols(
        label=label,
        pids=[image.pid for image in images],
        files=found.files(fetched),
        wakeups_count=found.wakeups_count,
        wakeups_named_percent=found.named_percent,
        command=found.remedies.command(asked=request.fetch),
        run=request.run,
        notes=list(asked.problems),
    )


def _looked_at(
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
    target = resolve(tuple(chosen.pid or ()), cgroup=chosen.cgroup, system=chosen.system)
    if target.system or len(target.pids) > _MOST_PROCESSES:
        raise UsageError(
            f"symbols looks at up to {_MOST_PROCESSES} processes", "choose some by --pid, or add --duration 5"
        )
    return target.label, [snapshot(pid) for pid in target.pids], None


class _FilesFound:
    """The files of some processes, and which of them wake-ups go through."""

    def __init__(self, images: Sequence[ProcessImage], record: Attribution | None) -> None:
        store = TableStore(downloads=False)
        self._through, self._unnamed, named = dict[str, int](), dict[str, int](), 0
        self.wakeups_count: int | None = None
        for stack, count in _stacks(record) if record is not None else ():
            self.wakeups_count = (self.wakeups_count or 0) + count
            own = find_blamed_frame(stack)
            named += count if own is not None and own.function is not None else 0
            for counts, frames in ((self._through, stack), (self._unnamed, [f for f in stack if f.function is None])):
                for module in {frame.module for frame in frames}:
                    counts[module] = counts.get(module, 0) + count
        self.named_percent = 100.0 * named / self.wakeups_count if self.wakeups_count else None
        known: dict[tuple[str, str | None], FileNames] = {}
        for image in images:
            mappings = mapped_files(image, lambda module: self.wakeups_count is None or module in self._through)
            fresh = [mapping for mapping in mappings if (mapping.path, mapping.build_id) not in known]
            known.update({(file.path, file.build_id): file for file in survey_names(image, fresh, store)})
        self._files = sorted(known.values(), key=lambda file: -self._unnamed.get(file.module, 0))
        self.lacking = [file for file in self._files if self.wakeups_count is None or self._unnamed.get(file.module, 0)]
        self.remedies = Remedies(images[0].pid if images else 0, self.lacking)

    def _share(self, counts: dict[str, int], module: str) -> float | None:
        return 100.0 * counts.get(module, 0) / self.wakeups_count if self.wakeups_count else None

    def files(self, fetched: dict[str, bool]) -> list[SymbolFile]:
        """For the record; `fetched` are those that servers were asked for, by build id."""
        files = []
        for file in self._files:
            package = None if file.is_complete else self.remedies.package(file)
            files.append(
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
                    package=None if package is None else package.word,
                    note=file.note,
                    fetched=fetched.get(file.build_id or ""),
                )
            )
        return files


def _stacks(record: Attribution) -> Iterable[tuple[list[StackFrame], int]]:
    """The stacks of wake-ups and how often each was: on idle CPUs and on those that ran anyway."""
    for row in record.wakeups:
        if row.stack:
            yield row.stack, max(row.count, row.wakings_count or 0)
    for waking in record.wakings_without_exit:
        if waking.stack:
            yield waking.stack, waking.wakings_count


def _fetch(found: _FilesFound, asked: debuginfo.FetchRequest, say: Say, consent: Consent) -> dict[str, bool]:
    """Ask the servers for what is lacking: whether each build id came.

    Raises PowerprofError without consent, and where servers failed and nothing came.
    """
    files = {file.build_id: file.module for file in found.remedies.files if file.build_id}
    if not files:
        return {}
    few = list(files.values())[:3]
    more = [text.plural(len(files) - 3, "more file")] if len(files) > 3 else []
    hosts = text.join_words(debuginfo.configured_servers())
    if not consent(f"{hosts}: debug files of {text.join_words([*few, *more])}, up to 1 GiB each"):
        raise PowerprofError("nothing was fetched", "answer y, or use --yes")
    fetched = {}
    for build_id, module in files.items():
        say(f"asking for the debug file of {module}")
        fetched[build_id] = debuginfo.fetch(build_id, asked) is not None
    if asked.problems and not any(fetched.values()):
        raise PowerprofError(f"nothing was fetched: {next(iter(asked.problems))}", "name other servers, or try later")
    return fetched
