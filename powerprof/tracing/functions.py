# SPDX-License-Identifier: Apache-2.0
"""Count calls and times of chosen functions of processes by uprobes, and measure the cost of the probes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import msgspec
import numpy as np

from powerprof.measure.clock import kernel_ns
from powerprof.measure.procfs import process_cpu_ns
from powerprof.measure.window import PassedWindow, WindowPart, run_window
from powerprof.stacks.image import ProcessGoneError, ProcessImage, snapshot
from powerprof.stacks.store import TableStore, open_probed
from powerprof.system.closeable import Closeable
from powerprof.system.errors import CapabilityError, PowerprofError
from powerprof.system.next_steps import command_line
from powerprof.system.reader_process import Opened
from powerprof.tracing.bpf import features
from powerprof.tracing.bpf.btf import Btf, read_kernel_btf
from powerprof.tracing.bpf.cost_meter import CostMeter, ProgramCost
from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.bpf.probe_cost import measure_cost
from powerprof.tracing.bpf.shared_numbers import COOKIE_STEPPED, FunctionCount, FunctionSum
from powerprof.tracing.bpf.task_definitions import build_task_definitions
from powerprof.tracing.bpf.uprobes import Site, Uprobes, choose_attach_type
from powerprof.tracing.captures import FunctionCounts, FunctionTrace
from powerprof.tracing.exceptions import find_throwing_modules
from powerprof.tracing.followed import FollowedProcesses
from powerprof.tracing.function_exits import read_exits
from powerprof.tracing.function_places import find_probed
from powerprof.tracing.symbols import Function, MatchedFunctions, ModuleFunctions, refuse_too_many

# One field per FunctionSum, in that order.
FIELDS = tuple(
    f"{name}_ns" if name.endswith(("wall", "cpu")) else name for name in map(str.lower, FunctionSum.__members__)
)
# The beginnings of struct thread, struct frame_key and struct frame.
_THREAD = np.dtype(
    [(name, "<u8") for name in ("off_ns", "out_ns", "returned_sp")] + [(name, "<u4") for name in ("depth", "deepest")]
)
_PLACE = np.dtype([("tid", "<u4"), ("depth", "<u4")])
_FRAME = np.dtype(
    [(name, "<u8") for name in ("sp", "wall_ns", "cpu_ns", "child_wall_ns", "child_cpu_ns")]
    + [(name, "<u4") for name in ("function", "stepped", "children", "stepped_children")]
)


def sum_open_calls(threads: tuple[bytes, bytes], frames: tuple[bytes, bytes], now_ns: int) -> dict[int, dict[str, int]]:
    """Return the sums of open calls by function (FIELDS), from keys and values of the maps of functions.bpf.c."""
    calls: dict[int, dict[str, int]] = {}
    places = np.frombuffer(frames[0], dtype=_PLACE).tolist()
    open_frames = dict(zip(places, np.frombuffer(frames[1], dtype=_FRAME), strict=True))
    tids = np.frombuffer(threads[0], dtype="<u4").tolist()
    size = len(threads[1]) // max(len(tids), 1)
    for number, tid in enumerate(tids):
        thread = np.frombuffer(threads[1], dtype=_THREAD, count=1, offset=number * size)[0]
        out_ns = int(thread["out_ns"])
        off_ns = int(thread["off_ns"]) + (max(now_ns - out_ns, 0) if out_ns else 0)
        stack: list[Any] = []
        while len(stack) < int(thread["depth"]) and (tid, len(stack)) in open_frames:
            stack.append(open_frames[tid, len(stack)])
        _add_open_calls(stack, now_ns, off_ns, calls)
    return calls


def _add_open_calls(stack: list[Any], now_ns: int, off_ns: int, calls: dict[int, dict[str, int]]) -> None:
    """Add one thread's open calls, outermost first, to the sums."""
    numbers = [int(frame["function"]) for frame in stack]
    below_wall = below_cpu = below_stepped = 0
    for at in range(len(stack) - 1, -1, -1):
        frame, number = stack[at], numbers[at]
        wall, cpu = max(now_ns - int(frame["wall_ns"]), 0), max(now_ns - off_ns - int(frame["cpu_ns"]), 0)
        sums = calls.setdefault(number, dict.fromkeys(FIELDS, 0))
        sums["unfinished"] += 1
        sums["self_wall_ns"] += max(wall - int(frame["child_wall_ns"]) - below_wall, 0)
        sums["self_cpu_ns"] += max(cpu - int(frame["child_cpu_ns"]) - below_cpu, 0)
        sums["children"] += int(frame["children"]) + (at + 1 < len(stack))
        sums["stepped_children"] += int(frame["stepped_children"]) + below_stepped
        if number not in numbers[:at]:
            sums["wall_ns"] += wall
            sums["cpu_ns"] += cpu
        below_wall, below_cpu, below_stepped = wall, cpu, int(frame["stepped"])


MAX_FUNCTIONS = 200
HARD_LIMIT = 1022  # each thread carries a counter per function
MAX_DEPTH = 128
_THREADS = 8192
_FRAMES = 65_536
_RESERVED = 2  # the calibration's


def build_function_definitions(btf: Btf, size: int) -> dict[str, int | str]:
    """Return the definitions of functions.bpf.c. `size`: of its tables of functions, a power of two."""
    return {
        "FUNCTIONS": size,
        "THREADS": _THREADS,
        "FRAMES": _FRAMES,
        "MAX_DEPTH": MAX_DEPTH,
        **build_task_definitions(btf),
    }


class _TracedProcess(msgspec.Struct, frozen=True):
    image: ProcessImage
    names: MatchedFunctions


class HitMeter(CostMeter):
    """The cost of probed calls."""

    def __init__(
        self, program: LoadedProgram, events: Callable[[], float], hits: Callable[[], int], call_ns: float
    ) -> None:
        super().__init__(program, events)
        program.stop_counting()
        self._hits, self._hit_s = hits, call_ns / 1e9

    def begin(self) -> None:
        """Begin the window."""
        super().begin()
        self._first_hits, self.is_known = self._hits(), True

    def spent(self) -> ProgramCost:
        """Return the cost since the window began."""
        return ProgramCost(0.0, self._hit_s * (self._hits() - self._first_hits))


class FunctionTracer(Closeable, WindowPart):
    """Probes on the functions that match a pattern in some processes. A context manager that removes every probe.

    A probe costs its function 1 to 45 µs a call in a guest (`measure_cost`), so it is never part of an energy window.
    """

    def __init__(
        self,
        pids: Sequence[int],
        pattern: str,
        *,
        find_members: Callable[[], Sequence[int]] | None = None,
        limit: int = MAX_FUNCTIONS,
        multi: bool = True,
        unwinding_risk: bool = False,
    ) -> None:
        """Find the functions and load the program. No function is probed yet.

        `unwinding_risk`: use return probes, which are cheaper, even if an exception that passes one ends the process;
        `danger` then describes it. Otherwise such a process is probed at the exits of its functions.

        Raises UsageError for a pattern that matches no function or more than `limit`, CapabilityError if this host
        cannot probe, PowerprofError if a process has ended.
        """
        if os.uname().machine != "x86_64":
            raise CapabilityError(
                f"function probes on {os.uname().machine} are not supported; x86_64 is",
                f"functions without probes: {command_line('attribute', same_target=True)}",
            )
        features.require(features.ATTACH_COOKIE)
        self.pattern = pattern
        tables = TableStore()
        self._followed = FollowedProcesses(pids, find_members)
        self._targets = [
            _TracedProcess(image, find_probed(image, pattern, tables)) for image in self._take_snapshots(pids)
        ]
        refuse_too_many([target.names for target in self._targets], pattern, min(limit, HARD_LIMIT))
        names: dict[tuple[str, str, int], Function] = {}
        for target in self._targets:
            for module in target.names.modules:
                for function in module.functions:
                    names[module.mapping.device, module.mapping.path, function.vaddr] = function
        self.functions = list(names.values())
        self._index = {key: number for number, key in enumerate(names)}
        self._refused = list(dict.fromkeys(why for target in self._targets for why in target.names.refused))
        self._throwing = sorted({name for target in self._targets for name in find_throwing_modules(target.image)})
        # A part of a function that is jumped to has no return address on the stack, where a return probe changes it.
        is_unnamed = any(not function.has_name for function in self.functions)
        self._by_exits = is_unnamed or (bool(self._throwing) and not unwinding_risk)
        self._size = 1 << (len(self.functions) + _RESERVED - 1).bit_length()
        self._stack = ExitStack()
        try:
            self._load(multi)
        except BaseException:
            self._stack.close()
            raise

    def _take_snapshots(self, pids: Sequence[int]) -> list[ProcessImage]:
        """Return the images of the processes. One of a family may have ended before."""
        images = list[ProcessImage]()
        for number, pid in enumerate(pids, 1):
            try:
                images.append(snapshot(pid))
            except ProcessGoneError:
                if not self._followed.may_grow or (number == len(pids) and not images):
                    raise
        return images

    def _load(self, multi: bool) -> None:
        how = choose_attach_type(multi=multi)
        btf = read_kernel_btf()
        self.program = self._stack.enter_context(
            LoadedProgram("functions.bpf.c", build_function_definitions(btf, self._size), uprobe_type=how)
        )
        self._probes = Uprobes(self.program, how, btf)
        self._stack.callback(self._probes.close)
        cookies = (self._size - 2, self._size - 1 | COOKIE_STEPPED)
        cost = measure_cost(self._probes, cookies, self._calibrated, by_exits=self._by_exits)
        if cost is None and self._probes.multi:
            # Before Linux 6.10 the pid filter of uprobe_multi selected one thread instead of a process.
            self._stack.close()
            self._load(False)
            return
        if cost is None:
            raise PowerprofError(
                "function probes count nothing on this host",
                f"use samples: {command_line('profile', same_target=True)}",
            )
        self._cost, self._stepped_cost = cost

    @property
    def danger(self) -> str | None:
        """The risk of the probes to the target; None if there is none."""
        if not self._throwing or self._by_exits:
            return None
        return f"{', '.join(self._throwing)} can throw: an exception that passes a probed function ends the process"

    def close(self) -> None:
        self._stack.close()

    def _calibrated(self, cookie: int) -> tuple[int, int]:
        counts = self._counts(cookie & (self._size - 1))
        return counts["calls"], counts["self_cpu_ns"]

    def _counts(self, number: int) -> dict[str, int]:
        return dict(zip(FIELDS, self.program.per_cpu_words("stats", number), strict=True))

    def measure(self, duration_s: float, *parts: WindowPart, settle: bool = False) -> FunctionTrace:
        """Measure for `duration_s`, with other parts of the window.

        `settle`: give up root's privileges once the probes are placed. Raises PowerprofError if no function can be
        probed.
        """
        return self.collect(run_window(duration_s, self, *parts, settle=settle))

    def meter(self, events: Callable[[], float]) -> CostMeter:
        """Return the meter of the cost of probed calls, by their number and the measured cost of one."""
        is_stepped = any(function.stepped for function in self.functions)
        return HitMeter(
            self.program, events, self._count_hits, (self._stepped_cost if is_stepped else self._cost).call_ns
        )

    def _count_hits(self) -> int:
        return self.program.per_cpu_sum("counters")[FunctionCount.HITS]

    def open(self) -> None:
        for table in ("threads", "frames"):
            self.program.clear(table)
        self._before = [self._counts(number) for number in range(len(self.functions))]
        self._counters = self.program.per_cpu_sum("counters")
        self._refused_now = self._attach()

    def begin(self) -> None:
        self._cpu_ns = [process_cpu_ns(target.image.pid) for target in self._targets]
        self._followed.begin()
        self._started_ns = kernel_ns()
        self._enable(True)

    def end(self) -> None:
        try:
            self._enable(False)
            self._ended_ns = kernel_ns()
            self._followed.end()
            self._cpu_after_ns = [process_cpu_ns(target.image.pid) for target in self._targets]
        finally:
            self._probes.close()

    def collect(self, passed: PassedWindow) -> FunctionTrace:
        """Return the counts of the window."""
        open_frames = sum_open_calls(
            self.program.hash_bytes("threads"), self.program.hash_bytes("frames"), self._ended_ns
        )
        rows = []
        for number, function in enumerate(self.functions):
            counts = {name: value - self._before[number][name] for name, value in self._counts(number).items()}
            for name, value in open_frames.get(number, {}).items():
                counts[name] += value
            rows.append(
                FunctionCounts(
                    name=function.name, module=function.module, vaddr=function.vaddr, stepped=function.stepped, **counts
                )
            )
        pairs = zip(self._cpu_ns, self._cpu_after_ns, strict=True)
        spent = [after - at for at, after in pairs if at is not None and after is not None]
        moved = [now - then for then, now in zip(self._counters, self.program.per_cpu_sum("counters"), strict=True)]
        return FunctionTrace(
            pattern=self.pattern,
            pids=[target.image.pid for target in self._targets],
            window_s=(self._ended_ns - self._started_ns) / 1e9,
            functions=rows,
            hits_count=moved[FunctionCount.HITS],
            cost=self._cost,
            stepped_cost=self._stepped_cost,
            process_cpu_s=sum(spent) / 1e9 if len(spent) == len(self._cpu_ns) else None,
            unmatched_count=moved[FunctionCount.UNMATCHED],
            too_deep_count=moved[FunctionCount.TOO_DEEP],
            lost_count=moved[FunctionCount.NO_ROOM],
            refused=[*self._refused, *self._refused_now],
            notes=[*([self.danger] if self.danger else []), *passed.notes, *self._joined_notes(), *self._left_notes()],
            method=("uprobe_multi" if self._probes.multi else "uprobe PMU") + (", at exits" if self._by_exits else ""),
            tool_cpu_s=passed.tool_cpu_s,
            ended=passed.ended,
        )

    def _joined_notes(self) -> list[str]:
        count = self._followed.joined_count
        joined = f"{count:,} process{'' if count == 1 else 'es'} joined the target after the probes were placed"
        return [f"{joined}: their calls are not counted"] if count else []

    def _left_notes(self) -> list[str]:
        if not self._probes.is_left:
            return []
        left = "a helper process removes the probes, which count nothing, as soon as it is unlocked"
        return [f"a process that maps a probed file keeps its memory map locked: {left}"]

    def _attach(self) -> list[tuple[str, str]]:
        refused: list[tuple[str, str]] = []
        attached = 0
        try:
            for target in self._targets:
                for module in target.names.modules:
                    opened = open_probed(target.image, module.mapping)
                    if not isinstance(opened, Opened):
                        refused.append((module.mapping.module, opened))
                        continue
                    sites, skipped = self._sites(target.image, module)
                    refused += skipped
                    with opened:
                        failed = self._probes.attach(opened.fd, target.image.pid, sites)
                    attached += len(sites) - len(failed)
                    refused += [
                        (self.functions[site.cookie & (COOKIE_STEPPED - 1)].name, reason) for site, reason in failed
                    ]
        except BaseException:
            self._probes.close()
            raise
        if not attached:
            name, reason = refused[0] if refused else (self.pattern, "gone")
            raise PowerprofError(
                f"{name} cannot be probed: {reason}", f"use samples: {command_line('profile', same_target=True)}"
            )
        return refused

    def _sites(self, image: ProcessImage, module: ModuleFunctions) -> tuple[list[Site], list[tuple[str, str]]]:
        exits = read_exits(image, module) if self._by_exits else {}
        sites: list[Site] = []
        refused: list[tuple[str, str]] = []
        for function in module.functions:
            number = self._index[module.mapping.device, module.mapping.path, function.vaddr]
            cookie = number | COOKIE_STEPPED if function.stepped else number
            places = exits.get(function.vaddr)
            if isinstance(places, str):
                refused.append((function.name, f"where it returns is unknown: {places}"))
            elif places is None:
                sites.append(Site(function.offset, cookie))
            else:
                sites.append(Site(function.offset, cookie, tuple(function.offset + at for at in places)))
        return sites, refused

    def _enable(self, on: bool) -> None:
        self.program.put("enabled", 0, int(on).to_bytes(4, "little"))
