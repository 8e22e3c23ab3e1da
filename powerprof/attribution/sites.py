# SPDX-License-Identifier: Apache-2.0
"""Saved registers and stack bytes as named stacks: each distinct site is unwound and named once."""

from __future__ import annotations

import re
from collections import OrderedDict

import msgspec
from msgspec.structs import replace

from powerprof.attribution.capture import Capture, NamedSite, NamedSites, StackTally
from powerprof.model import text
from powerprof.model.attribution import StackFrame
from powerprof.model.records import Notes
from powerprof.stacks.image import ProcessImage
from powerprof.stacks.registers import SavedStack
from powerprof.stacks.store import TableStore
from powerprof.stacks.symbolizer import Frame, Symbolizer
from powerprof.stacks.unwind import Unwinder
from powerprof.tracing.bpf.shared_numbers import CODE_NEWBORN, CODE_WORKER, StackKind
from powerprof.tracing.idle_data import SavedSite

Key = tuple[int, int, int, int]
LEFT_OUT = "[not named]"
_MOST_FRAMES = 20_000
_MOST_FILES = 3
# Processes whose symbolizers are kept. The files of an evicted one are opened again.
_SYMBOLIZERS = 32
_ADDRESS = re.compile(r"address 0x[0-9a-f]+")


class NamedStack(msgspec.Struct, frozen=True):
    """A stack by its addresses (innermost first), its frames, and whether it reaches the thread's start."""

    pcs: tuple[int, ...]
    frames: tuple[StackFrame, ...]
    complete: bool
    reason: str | None
    captured: bool = True


# Of a thread that the kernel runs in a process, such as a worker of io_uring.
NO_STACK = NamedStack((), (), False, "no user stack", False)


def _stack_frame(frame: Frame) -> StackFrame:
    start = None if frame.function_start is None else f"{frame.function_start:#x}"
    return StackFrame(
        function=frame.function,
        module=frame.module,
        address=f"{frame.address:#x}",
        offset=frame.offset,
        function_start=start,
        inlined=frame.inlined,
        source=frame.source,
    )


def _list_files(files: list[str]) -> str:
    few = files[:_MOST_FILES]
    return text.join_words([*few, text.plural(len(files) - len(few), "more file")] if len(files) > len(few) else few)


def unnamed_stack(key: Key, reason: str, *, captured: bool = False) -> NamedStack:
    """Return the stack of a site without names, with the reason."""
    frame = StackFrame(function=None, module=LEFT_OUT, address=f"{key[1]:#x}")
    return NamedStack((key[1],), (frame,), False, reason, captured)


class StackMemo:
    """Stacks of earlier captures by process and site, for tracers that send each stack once.

    Threads of a server sleep in the same few places all day, so the least recently used stacks are evicted. Equal
    frames are stored once.
    """

    def __init__(self, most: int = 20_000) -> None:
        self._kept: OrderedDict[tuple[int, int, int, Key], NamedStack] = OrderedDict()
        self._frames: dict[StackFrame, StackFrame] = {}
        self._most = most

    def get(self, place: tuple[int, int, int, Key]) -> NamedStack | None:
        """Return the stack of a site: (kind, pid, start of the process, key)."""
        stack = self._kept.get(place)
        if stack is not None:
            self._kept.move_to_end(place)
        return stack

    def put(self, place: tuple[int, int, int, Key], stack: NamedStack) -> None:
        """Store the stack of a site."""
        if len(self._frames) > _MOST_FRAMES:
            self._frames.clear()
        frames = tuple(self._frames.setdefault(frame, frame) for frame in stack.frames)
        self._kept[place] = replace(stack, frames=frames)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)


class SiteStacks:
    """The stacks of a capture. A site whose bytes were not copied yields its one known address, incomplete.

    Stacks that the capture's own host unwound and named are taken from the capture. `memo` holds those of earlier
    captures; with a memo, inlined calls and source lines are left out, because reading debug information takes too
    long for a live tracer. While `only_known` is set, new stacks get no names.
    """

    def __init__(self, capture: Capture, store: TableStore | None = None, memo: StackMemo | None = None) -> None:
        self._store = store or TableStore()
        self._memo = memo
        self.only_known = False
        self._unwinder = Unwinder(self._store)
        # The image is stored next to its symbolizer: the id of a deleted object can be used again.
        self._symbolizers: OrderedDict[int, tuple[ProcessImage, Symbolizer]] = OrderedDict()
        self._unread_files: dict[str, None] = {}
        self._images: dict[int, list[ProcessImage]] = {}
        for image in capture.images:
            self._images.setdefault(image.pid, []).append(image)
        self._exact: dict[tuple[int, Key], SavedSite] = {}
        self._near: dict[tuple[int, int, int, int], SavedSite] = {}
        # If a thread sleeps where another of its process slept, only the first one's bytes were copied.
        self._same: dict[tuple[int, int, int, int, int], SavedSite] = {}
        self._registers: dict[tuple[int, int, int], SavedSite] = {}
        self._sleeping = {(sleeper.tid, sleeper.ip, sleeper.sp): sleeper for sleeper in capture.sleeping}
        for site in capture.sites:
            place = (site.tid, site.ip, site.sp)
            if site.kind == StackKind.REGISTERS:
                self._registers.setdefault(place, site)
                continue
            self._exact[(site.kind, (*place, site.code))] = site
            self._same.setdefault((site.kind, site.pid, site.ip, site.sp, site.code), site)
            self._near.setdefault((site.kind, *place), site)
        self._named: dict[tuple[int, int, Key], NamedStack] = {}
        self.tally = StackTally()
        self._notes: Notes = []
        # Files that another process, which named stacks of this capture, could not read.
        self.unread: list[str] = []
        if capture.named is not None:
            self._restore(capture.named)

    def find(self, kind: int, pid: int, key: Key) -> NamedStack:
        """Return the stack of a site; `key` is (tid, ip, sp, code), with code 0 if the call path was not hashed."""
        site = (kind, pid, key)
        stack = self._named.get(site)
        if stack is None:
            stack = self._named[site] = self._find_in_memo(kind, pid, key) or self._name_new(kind, pid, key)
        return stack

    def _place(self, kind: int, pid: int, key: Key) -> tuple[int, int, int, Key] | None:
        images = self._images.get(pid, [])
        return (kind, pid, images[0].started_ticks, key) if len(images) == 1 else None

    def _find_in_memo(self, kind: int, pid: int, key: Key) -> NamedStack | None:
        place = self._place(kind, pid, key)
        stack = self._memo.get(place) if self._memo is not None and place is not None else None
        if stack is not None:
            self._count(stack.complete, stack.reason, captured=stack.captured)
        return stack

    def _name_new(self, kind: int, pid: int, key: Key) -> NamedStack:
        if self.only_known:
            self._count(False, "left without names: there were more than may be named at once", captured=False)
            return unnamed_stack(key, "left without names")
        stack = self._name(kind, pid, key)
        self.remember(kind, pid, key, stack)
        return stack

    def remember(self, kind: int, pid: int, key: Key, stack: NamedStack) -> None:
        """Store a site's stack for later captures. A stack without bytes is replaced when they arrive."""
        place = self._place(kind, pid, key)
        if self._memo is not None and place is not None:
            self._memo.put(place, stack)
            if stack.captured:
                # Also store it for sleeps there whose call path was not hashed.
                self._memo.put((*place[:3], (*key[:3], 0)), stack)

    def is_known(self, kind: int, pid: int, key: Key) -> bool:
        """Return whether the memo has a site's stack from all bytes that were sent of it."""
        place = self._place(kind, pid, key)
        stack = self._memo.get(place) if self._memo is not None and place is not None else None
        return stack is not None and (stack.captured or self._saved(kind, pid, key) is None)

    def has_image(self, pid: int) -> bool:
        """Return whether the capture has an image of a process."""
        return pid in self._images

    def _restore(self, named: NamedSites) -> None:
        self.tally, self._notes = named.tally, named.notes
        for site in named.sites:
            frames = tuple(named.frames[number] for number in site.frames)
            self._named[site.kind, site.pid, (site.tid, site.ip, site.sp, site.code)] = NamedStack(
                tuple(site.pcs), frames, site.complete, site.reason, site.captured
            )

    def export_names(self) -> NamedSites:
        """Return every unwound and named stack, to be saved with the capture."""
        places: dict[StackFrame, int] = {}
        sites = [
            NamedSite(
                kind,
                pid,
                *key,
                list(stack.pcs),
                [places.setdefault(frame, len(places)) for frame in stack.frames],
                stack.complete,
                stack.reason,
                stack.captured,
            )
            for (kind, pid, key), stack in self._named.items()
        ]
        return NamedSites(frames=list(places), sites=sites, tally=self.tally, notes=self.notes())

    def notes(self) -> Notes:
        """Return notes on unreadable files and on the reasons for truncated stacks."""
        if self._notes:
            return self._notes
        counts: dict[str, int] = {}
        for reason, count in self.tally.reasons.items():
            # The file is named once, in the notes on files.
            why = _ADDRESS.sub("an address", reason.rpartition(": ")[2])
            counts[why] = counts.get(why, 0) + count
        ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        reasons = "; ".join(f"{why} ({count:,})" for why, count in ranked)
        cut = [f"{text.plural(sum(counts.values()), 'stack')} cut short: {reasons}"] if counts else []
        return list(dict.fromkeys([*self._store.budget.notes(), *self.unread, *self.notes_unread(), *cut]))

    def notes_unread(self) -> list[str]:
        """Return notes on files of the processes that could not be read."""
        files: dict[str, list[str]] = {}
        for _, symbolizer in self._symbolizers.values():
            self._unread_files.update(dict.fromkeys(symbolizer.notes))
        for note in self._unread_files:
            file, _, reason = note.rpartition(": ")
            files.setdefault(reason, []).append(file)
        return [f"{_list_files(names)}: {reason}" if any(names) else reason for reason, names in files.items()]

    def _saved(self, kind: int, pid: int, key: Key) -> tuple[SavedStack, int] | None:
        """Return the stack of a site, and the `space` of the image in which it was; None if its bytes are missing."""
        tid, ip, sp, code = key
        site = self._exact.get((kind, key)) if code else None
        if site is None and code > CODE_WORKER:
            site = self._same.get((kind, pid, ip, sp, code))
        if site is None and kind == StackKind.SLEEPER:
            asleep, registers = self._sleeping.get((tid, ip, sp)), self._registers.get((tid, ip, sp))
            if asleep is not None and registers is not None:
                return SavedStack(pid, tid, registers.registers, asleep.stack), registers.space
        site = site or self._near.get((kind, tid, ip, sp))
        return None if site is None else (SavedStack(pid, tid, site.registers, site.stack), site.space)

    def _name(self, kind: int, pid: int, key: Key) -> NamedStack:
        if key[3] == CODE_WORKER:
            return NO_STACK
        images = self._images.get(pid, [])
        saved = self._saved(kind, pid, key)
        ip = key[1]
        if not images:
            self._count(False, "the process was gone before it could be looked at", captured=saved is not None)
            frame = StackFrame(function=None, module="[unknown]", address=f"{ip:#x}")
            return NamedStack((ip,), (frame,), False, "the process is gone", saved is not None)
        if key[3] == CODE_NEWBORN:
            # The thread is at its first instruction, which has no caller.
            self._count(True, None, captured=True)
            image = next((image for image in reversed(images) if image.mapping_at(ip)), images[-1])
            return NamedStack((ip,), self._frames_at(image, ip), True, None)
        if saved is None:
            self._count(False, "its bytes were not copied", captured=False)
            return NamedStack((ip,), self._frames_at(images[-1], ip), False, "its bytes were not copied", False)
        stack, space = saved
        # After an exec only one of the process's images is right. If its `space` is unknown, take the longest walk.
        fitting = [image for image in images if space and image.space == space] or images
        walks = [(image, self._unwinder.unwind(image, stack)) for image in reversed(fitting)]
        image, unwound = max(walks, key=lambda walk: (walk[1].complete, len(walk[1].pcs)))
        self._count(unwound.complete, unwound.reason, captured=True)
        calls = [self._frames_at(image, pc, exact) for pc, exact in zip(unwound.pcs, unwound.exact, strict=True)]
        frames = tuple(frame for call in calls for frame in call)
        return NamedStack(tuple(unwound.pcs), frames, unwound.complete, unwound.reason)

    def _frames_at(self, image: ProcessImage, pc: int, exact: bool = True) -> tuple[StackFrame, ...]:
        return tuple(_stack_frame(frame) for frame in self._symbolizer(image).frames(pc, exact))

    def _symbolizer(self, image: ProcessImage) -> Symbolizer:
        entry = self._symbolizers.get(id(image))
        if entry is None:
            entry = self._symbolizers[id(image)] = image, Symbolizer(image, self._store, inline=self._memo is None)
            if len(self._symbolizers) > _SYMBOLIZERS:
                _, (_, evicted) = self._symbolizers.popitem(last=False)
                self._unread_files.update(dict.fromkeys(evicted.notes))
        self._symbolizers.move_to_end(id(image))
        return entry[1]

    def _count(self, complete: bool, reason: str | None, *, captured: bool) -> None:
        tally = self.tally
        tally.captured += captured
        tally.complete += complete
        tally.truncated += captured and not complete
        tally.failed += not captured
        if reason is not None and not complete:
            tally.reasons[reason] = tally.reasons.get(reason, 0) + 1
