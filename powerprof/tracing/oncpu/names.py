# SPDX-License-Identifier: Apache-2.0
"""The functions of sampled call paths, from the bytes and addresses that were kept of them."""

from __future__ import annotations

import msgspec

from powerprof import text
from powerprof.errors import DataError
from powerprof.records import Note
from powerprof.stacks.registers import SavedStack
from powerprof.stacks.remedies import missing_names
from powerprof.stacks.store import TableStore
from powerprof.stacks.symbols import Symbolizer
from powerprof.stacks.unwind import Unwinder
from powerprof.tracing.captures.oncpu import OnCpuCapture, SampleRow, UserStack


class OnCpuFrame(msgspec.Struct, frozen=True):
    """One function of a stack; `function` is None where no symbol covers the address."""

    function: str | None
    module: str
    address: str
    offset: int | None
    label: str
    kernel: bool = False
    inlined: bool = False
    source: str | None = None

    @property
    def placed(self) -> str:
        """The label with the source file's name and line, where they are known."""
        return text.placed(self.label, self.source)


class PathNames:
    """The frames of each distinct user and kernel path, each resolved once."""

    def __init__(self, capture: OnCpuCapture) -> None:
        self._store = TableStore()
        self._capture = capture
        self._unwinder = Unwinder(self._store)
        self._symbolizers: dict[int, Symbolizer] = {}
        self._users: dict[tuple[int, int], UserStack] = {(user.pid, user.hash): user for user in capture.users}
        self._known: dict[tuple[int, int], tuple[list[OnCpuFrame], str]] = {}

    def of(self, row: SampleRow) -> tuple[list[OnCpuFrame], str]:
        """The kernel's frames and then the program's, innermost first, and what became of the user stack."""
        frames = self._kernel(row.kernel) if row.kernel else []
        if not row.user:
            return frames, "kernel"
        outer, state = self._user(row.pid, row.user)
        return [*frames, *outer], state

    def _user(self, pid: int, digest: int) -> tuple[list[OnCpuFrame], str]:
        key = (pid, digest)
        if key not in self._known:
            self._known[key] = self._resolve(self._users.get(key))
        return self._known[key]

    def _resolve(self, saved: UserStack | None) -> tuple[list[OnCpuFrame], str]:
        if saved is None:
            return [], "lost"
        if saved.image is None or not 0 <= saved.image < len(self._capture.images):
            return [], "failed"
        image = self._capture.images[saved.image]
        try:
            unwound = self._unwinder.unwind(image, SavedStack(saved.pid, saved.tid, saved.registers, saved.stack))
        except DataError:
            return [], "failed"
        symbolizer = self._symbolizers.get(saved.image)
        if symbolizer is None:
            symbolizer = self._symbolizers[saved.image] = Symbolizer(image, self._store)
        frames = [
            OnCpuFrame(
                frame.function,
                frame.module,
                f"{frame.address:#x}",
                frame.offset,
                frame.label,
                False,
                frame.inlined,
                frame.source,
            )
            for frame in symbolizer.stack(unwound)
        ]
        state = "complete" if unwound.complete else "truncated" if len(unwound.pcs) > 1 else "failed"
        return frames, state

    def _kernel(self, digest: int) -> list[OnCpuFrame]:
        frames = []
        for address in self._capture.kernel.get(digest, ()):
            name = self._capture.kernel_names.get(address)
            if name is None:
                frames.append(OnCpuFrame(None, "vmlinux", f"{address:#x}", None, f"[kernel] {address:#x}", True))
            else:
                frames.append(OnCpuFrame(name[0], name[1], f"{address:#x}", address - name[2], name[0], True))
        return frames

    @property
    def notes(self) -> list[str | Note]:
        """What could not be read, and how missing names can be had."""
        unread = dict.fromkeys(note for symbolizer in self._symbolizers.values() for note in symbolizer.notes)
        frames = [frame for known, _ in self._known.values() for frame in known]
        missing = missing_names([(frame.module, frame.function is not None) for frame in frames], self._capture.images)
        return [*unread, *([missing] if missing is not None else [])]
