# SPDX-License-Identifier: Apache-2.0
"""From saved registers and bytes to named stacks: each distinct site once."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from powerprof.attribution.capture import Capture, NamedSite, NamedSites, StackTally
from powerprof.model import text
from powerprof.model.attribution import StackFrame
from powerprof.model.records import Notes
from powerprof.stacks.image import ProcessImage
from powerprof.stacks.interpreter import PythonFrame, places
from powerprof.stacks.registers import SavedStack
from powerprof.stacks.store import TableStore
from powerprof.stacks.symbols import Frame, Symbolizer
from powerprof.stacks.unwind import Unwinder
from powerprof.tracing.bpf.shared_numbers import CODE_NEWBORN, StackKind
from powerprof.tracing.idle_data import SavedSite

# Functions of an interpreter in the place of the C function that runs them.

_LOOP = "_PyEval_EvalFrameDefault"
Call = tuple[int, tuple[StackFrame, ...]]


@dataclass(frozen=True)
class InterpretedRuns:
    """Frames of one chain by the calls from C that began them, innermost first; not `whole`: the last is cut off."""

    frames: list[list[PythonFrame]]
    whole: bool


def split_runs(chain: Sequence[PythonFrame], whole: bool) -> InterpretedRuns:
    """A chain, split where frames say that they were called from C."""
    split: list[list[PythonFrame]] = [[]]
    for frame in chain:
        if not frame.is_shim:
            split[-1].append(frame)
        if frame.begins:
            split.append([])
    if not split[-1]:
        split.pop()
    return InterpretedRuns(split, whole)


def merge_calls(calls: Sequence[Call], chain: InterpretedRuns, complete: bool) -> list[Call] | None:
    """A stack's calls, innermost first, with the interpreter's functions in place of its loop; None where the two
    disagree on how often C called the interpreter. `complete`: the stack reaches the thread's start.

    Where the stack is cut off, what the chain still knows follows it.
    """
    loops = sum(_is_loop(call) for call in calls)
    more_known = len(chain.frames) - loops
    if (more_known > 0 and complete) or (more_known < 0 and chain.whole):
        return None
    merged: list[Call] = []
    left = iter(chain.frames)
    for call in calls:
        run = next(left, None) if _is_loop(call) else None
        merged += [_call(frame) for frame in run] if run else [call]
    return merged + [_call(frame) for run in left for frame in run]


def _is_loop(call: Call) -> bool:
    """Also its parts that a compiler put elsewhere: `….cold`."""
    name = call[1][-1].function
    return name is not None and name.partition(".")[0] == _LOOP


def _call(frame: PythonFrame) -> Call:
    address = frame.instruction & (1 << 56) - 1
    if frame.function is None:
        return address, (StackFrame(function=None, module="[Python]", address=f"{address:#x}"),)
    file = frame.file.rpartition("/")[2]
    place = f"{file}:{frame.line}" if frame.line else file
    source = f"{frame.file}:{frame.line}" if frame.line else frame.file
    name = f"{frame.function} ({place})"
    return address, (StackFrame(function=name, module=file, address=f"{address:#x}", source=source),)


Key = tuple[int, int, int, int]
LEFT_OUT = "[not named]"
_MOST_FRAMES = 20_000
_MOST_FILES = 3
# Whose addresses are remembered at once: a process that comes back has its files opened again.
_SYMBOLIZERS = 32
_ADDRESS = re.compile(r"address 0x[0-9a-f]+")


@dataclass(frozen=True)
class NamedStack:
    """A stack by its addresses (innermost first): the key, its frames, and whether it reaches the thread's start."""

    pcs: tuple[int, ...]
    frames: tuple[StackFrame, ...]
    complete: bool
    reason: str | None
    captured: bool = True
    interpreted: bool = False


def _frame(frame: Frame) -> StackFrame:
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


def _named(files: list[str]) -> str:
    """As many as a line holds."""
    few = files[:_MOST_FILES]
    return text.join_words([*few, text.plural(len(files) - len(few), "more file")] if len(files) > len(few) else few)


def unnamed_stack(key: Key, reason: str, *, captured: bool = False) -> NamedStack:
    """The stack of a site that nobody named, and why."""
    frame = StackFrame(function=None, module=LEFT_OUT, address=f"{key[1]:#x}")
    return NamedStack((key[1],), (frame,), False, reason, captured)


class StackMemo:
    """Stacks of captures before, by process and site, for tracers that send each stack once.

    Threads of a server sleep in the same few places all day: what is not asked for in a long while is dropped first.
    Their stacks are made of the same frames, which are kept once.
    """

    def __init__(self, most: int = 20_000) -> None:
        self._kept: OrderedDict[tuple[int, int, int, Key], NamedStack] = OrderedDict()
        self._frames: dict[StackFrame, StackFrame] = {}
        self._most = most

    def get(self, place: tuple[int, int, int, Key]) -> NamedStack | None:
        """The stack of a site: (kind, pid, when the process started, key)."""
        known = self._kept.get(place)
        if known is not None:
            self._kept.move_to_end(place)
        return known

    def put(self, place: tuple[int, int, int, Key], stack: NamedStack) -> None:
        """Remember it."""
        if len(self._frames) > _MOST_FRAMES:
            self._frames.clear()
        frames = tuple(self._frames.setdefault(frame, frame) for frame in stack.frames)
        self._kept[place] = replace(stack, frames=frames)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)


class SiteStacks:
    """The stacks of a capture. A site whose bytes were never copied yields its one known address, not complete.

    Where the capture holds the stacks that its own host unwound and named, they are taken from it; `memo` has those of
    captures before, and then neither inlined calls nor source lines are looked for: whoever keeps a memo has no time
    for debug information. While `only_known` is set, what has no name yet is left without.
    """

    def __init__(self, capture: Capture, store: TableStore | None = None, memo: StackMemo | None = None) -> None:
        self._store = store or TableStore()
        self._memo = memo
        self.only_known = False
        self._unwinder = Unwinder(self._store)
        # The image is held beside its symbolizer: an identity may be given again once its object is gone.
        self._symbolizers: OrderedDict[int, tuple[ProcessImage, Symbolizer]] = OrderedDict()
        self._unread_files: dict[str, None] = {}
        self._images: dict[int, list[ProcessImage]] = {}
        for image in capture.images:
            self._images.setdefault(image.pid, []).append(image)
        self._exact: dict[tuple[int, Key], SavedSite] = {}
        self._near: dict[tuple[int, int, int, int], SavedSite] = {}
        # Of a thread that stood where another of its process had stood, the first one's were copied.
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
        self._frames = {(frame.pid, frame.code, frame.instruction): frame for frame in capture.frames}
        self._named: dict[tuple[int, int, Key], NamedStack] = {}
        self.tally = StackTally()
        self._notes: Notes = []
        # What somebody else who named stacks of this capture could not read.
        self.unread: list[str] = []
        if capture.named is not None:
            self._restore(capture.named)

    def find(self, kind: int, pid: int, key: Key) -> NamedStack:
        """The stack of a site; `key` is (tid, ip, sp, code), code 0 where the call path was not hashed."""
        memo = (kind, pid, key)
        stack = self._named.get(memo)
        if stack is None:
            stack = self._named[memo] = self._remembered(kind, pid, key) or self._anew(kind, pid, key)
        return stack

    def _place(self, kind: int, pid: int, key: Key) -> tuple[int, int, int, Key] | None:
        images = self._images.get(pid, [])
        return (kind, pid, images[0].started_ticks, key) if len(images) == 1 else None

    def _remembered(self, kind: int, pid: int, key: Key) -> NamedStack | None:
        place = self._place(kind, pid, key)
        stack = self._memo.get(place) if self._memo is not None and place is not None else None
        if stack is not None:
            self._count(stack.complete, stack.reason, captured=stack.captured)
        return stack

    def _anew(self, kind: int, pid: int, key: Key) -> NamedStack:
        if self.only_known:
            self._count(False, "left without names: there were more than may be named at once", captured=False)
            return unnamed_stack(key, "left without names")
        stack = self._name(kind, pid, key)
        self.learn(kind, pid, key, stack)
        return stack

    def learn(self, kind: int, pid: int, key: Key, stack: NamedStack) -> None:
        """Keep a site's stack for captures to come. One whose bytes are missing stands until they come."""
        place = self._place(kind, pid, key)
        if self._memo is not None and place is not None:
            self._memo.put(place, stack)
            if stack.captured and not stack.interpreted:
                # A sleep there of which the call path was not looked at. An interpreter's functions share one.
                self._memo.put((*place[:3], (*key[:3], 0)), stack)

    def knows(self, kind: int, pid: int, key: Key) -> bool:
        """Whether a site is remembered by all that was sent of it."""
        place = self._place(kind, pid, key)
        known = self._memo.get(place) if self._memo is not None and place is not None else None
        return known is not None and (known.captured or self._saved(kind, pid, key) is None)

    def has_image(self, pid: int) -> bool:
        """Whether this process was looked at."""
        return pid in self._images

    def _restore(self, named: NamedSites) -> None:
        self.tally, self._notes = named.tally, named.notes
        for site in named.sites:
            frames = tuple(named.frames[number] for number in site.frames)
            self._named[site.kind, site.pid, (site.tid, site.ip, site.sp, site.code)] = NamedStack(
                tuple(site.pcs), frames, site.complete, site.reason, site.captured
            )

    def named(self) -> NamedSites:
        """Everything that was unwound and named, to be saved with the capture."""
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
        """What could not be read of the processes' files, and why stacks were cut."""
        if self._notes:
            return self._notes
        short: dict[str, int] = {}
        for reason, count in self.tally.reasons.items():
            # Which file it was is in the notes of files, once.
            why = _ADDRESS.sub("an address", reason.rpartition(": ")[2])
            short[why] = short.get(why, 0) + count
        ranked = sorted(short.items(), key=lambda item: (-item[1], item[0]))
        reasons = "; ".join(f"{why} ({count:,})" for why, count in ranked)
        cut = [f"{text.plural(sum(short.values()), 'stack')} cut short: {reasons}"] if short else []
        if odd := self.tally.disagreeing:
            cut.append(
                f"{text.plural(odd, 'stack')} without the interpreter's functions: these disagree with the calls in C"
            )
        return list(dict.fromkeys([*self._store.budget.notes(), *self.unread, *self.notes_unread(), *cut]))

    def notes_unread(self) -> list[str]:
        """What could not be read of the processes' files."""
        files: dict[str, list[str]] = {}
        for _, symbolizer in self._symbolizers.values():
            self._unread_files.update(dict.fromkeys(symbolizer.notes))
        for note in self._unread_files:
            file, _, reason = note.rpartition(": ")
            files.setdefault(reason, []).append(file)
        return [f"{_named(names)}: {reason}" if any(names) else reason for reason, names in files.items()]

    def _saved(self, kind: int, pid: int, key: Key) -> SavedStack | None:
        tid, ip, sp, code = key
        site = self._exact.get((kind, key)) if code else None
        if site is None and code > CODE_NEWBORN:
            site = self._same.get((kind, pid, ip, sp, code))
        if site is None and kind == StackKind.SLEEPER:
            asleep, registers = self._sleeping.get((tid, ip, sp)), self._registers.get((tid, ip, sp))
            if asleep is not None and registers is not None:
                return SavedStack(pid, tid, registers.registers, asleep.stack)
        site = site or self._near.get((kind, tid, ip, sp))
        return None if site is None else SavedStack(pid, tid, site.registers, site.stack)

    def _name(self, kind: int, pid: int, key: Key) -> NamedStack:
        images = self._images.get(pid, [])
        saved = self._saved(kind, pid, key)
        ip = key[1]
        if not images:
            self._count(False, "the process was gone before it could be looked at", captured=saved is not None)
            frame = StackFrame(function=None, module="[unknown]", address=f"{ip:#x}")
            return NamedStack((ip,), (frame,), False, "the process is gone", saved is not None)
        if key[3] == CODE_NEWBORN:
            # It stands where threads start: nothing called it.
            self._count(True, None, captured=True)
            frames = tuple(_frame(frame) for frame in self._symbolizer(images[-1]).frames(ip))
            return NamedStack((ip,), frames, True, None)
        if saved is None:
            image = images[-1]
            self._count(False, "its bytes were not copied", captured=False)
            frames = tuple(_frame(frame) for frame in self._symbolizer(image).frames(ip))
            return NamedStack((ip,), frames, False, "its bytes were not copied", False)
        # After an exec only one of the process's images fits: the one in which the walk gets furthest.
        walks = [(image, self._unwinder.unwind(image, saved)) for image in reversed(images)]
        image, walked = max(walks, key=lambda walk: (walk[1].complete, len(walk[1].pcs)))
        self._count(walked.complete, walked.reason, captured=True)
        symbolizer = self._symbolizer(image)
        calls = [
            (pc, tuple(_frame(frame) for frame in symbolizer.frames(pc, exact)))
            for pc, exact in zip(walked.pcs, walked.exact, strict=True)
        ]
        chain = self._chain(kind, pid, key)
        merged = merge_calls(calls, self._runs(pid, chain), walked.complete) if chain else None
        if chain and merged is None:
            self.tally.disagreeing += 1
        shown = merged or calls
        frames = tuple(frame for _, frames in shown for frame in frames)
        pcs = tuple(pc for pc, _ in shown)
        return NamedStack(pcs, frames, walked.complete, walked.reason, interpreted=bool(chain))

    def _chain(self, kind: int, pid: int, key: Key) -> bytes:
        """An interpreter's frames where this very stack was looked at; of another one they would be somebody else's."""
        tid, ip, sp, code = key
        site = self._exact.get((kind, key)) or self._same.get((kind, pid, ip, sp, code))
        asleep = self._sleeping.get((tid, ip, sp)) if not code and kind == StackKind.SLEEPER else None
        return site.chain if site is not None else asleep.chain if asleep is not None else b""

    def _runs(self, pid: int, chain: bytes) -> InterpretedRuns:
        found, whole = places(chain)
        return split_runs([self._frames.get((pid, *place)) or PythonFrame(pid, *place) for place in found], whole)

    def _symbolizer(self, image: ProcessImage) -> Symbolizer:
        known = self._symbolizers.get(id(image))
        if known is None:
            known = self._symbolizers[id(image)] = image, Symbolizer(image, self._store, inline=self._memo is None)
            if len(self._symbolizers) > _SYMBOLIZERS:
                _, (_, gone) = self._symbolizers.popitem(last=False)
                self._unread_files.update(dict.fromkeys(gone.notes))
        self._symbolizers.move_to_end(id(image))
        return known[1]

    def _count(self, complete: bool, reason: str | None, *, captured: bool) -> None:
        tally = self.tally
        tally.captured += captured
        tally.complete += complete
        tally.truncated += captured and not complete
        tally.failed += not captured
        if reason is not None and not complete:
            tally.reasons[reason] = tally.reasons.get(reason, 0) + 1
