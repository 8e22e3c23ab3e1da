# SPDX-License-Identifier: Apache-2.0
"""Counts calls and times of chosen functions of processes by uprobes, and what that costs them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from powerprof.closeable import Closeable
from powerprof.errors import CapabilityError, PowerprofError
from powerprof.processes.reader_process import Opened
from powerprof.sources.clock import kernel_ns
from powerprof.sources.procfs import process_cpu_ns
from powerprof.stacks.image import ProcessImage, snapshot
from powerprof.stacks.store import TableStore, open_probed
from powerprof.tracing.bpf import features
from powerprof.tracing.bpf.btf import Btf, kernel_btf
from powerprof.tracing.bpf.definitions import struct_definitions
from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.bpf.probe_cost import measure_cost
from powerprof.tracing.bpf.shared_numbers import COOKIE_STEPPED, FunctionCount
from powerprof.tracing.bpf.uprobes import Site, Uprobes, attach_type
from powerprof.tracing.captures.functions import FunctionCounts, FunctionTrace
from powerprof.tracing.functions.open_calls import FIELDS, open_calls
from powerprof.tracing.symbols.exits import exits_of
from powerprof.tracing.symbols.patterns import Found, Function, ModuleFunctions, find_functions, refuse_too_many
from powerprof.tracing.symbols.throwing import throwing_modules
from powerprof.windows.runner import Part, Passed, pass_window

MAX_FUNCTIONS = 200
HARD_LIMIT = 1022  # each thread carries a counter per function
MAX_DEPTH = 128
_THREADS = 8192
_FRAMES = 65_536
_FIELDS = {f"task_struct_{name}": ("task_struct", name) for name in ("pid", "tgid")}
_RESERVED = 2  # the calibration's


def definitions(btf: Btf, size: int) -> dict[str, int | str]:
    """What the program needs to know; `size`: of its tables of functions, a power of two."""
    return {
        "FUNCTIONS": size,
        "THREADS": _THREADS,
        "FRAMES": _FRAMES,
        "MAX_DEPTH": MAX_DEPTH,
        **struct_definitions(btf, _FIELDS),
    }


@dataclass(frozen=True)
class _TracedProcess:
    image: ProcessImage
    names: Found


class FunctionTracer(Closeable, Part):
    """Probes the functions that a pattern means in some processes; a context manager that removes every probe.

    A probe costs its function 1 to 45 µs a call in a guest (`probe_cost`): never part of an energy window.
    """

    def __init__(
        self,
        pids: Sequence[int],
        pattern: str,
        *,
        limit: int = MAX_FUNCTIONS,
        multi: bool = True,
        unwinding_risk: bool = False,
    ) -> None:
        """Find the functions and load the program; nothing is probed yet.

        `unwinding_risk`: return probes, the cheaper kind, also where an exception that passes one ends the process;
        `danger` then says so. Else such a process is probed where its functions are left.

        Raises UsageError for a pattern that means nothing or more than `limit` functions, CapabilityError where this
        host cannot, PowerprofError where a process is gone.
        """
        if os.uname().machine != "x86_64":
            raise CapabilityError(
                f"function probes on {os.uname().machine} are not supported; x86_64 is",
                "powerprof attribute names functions without probes",
            )
        features.need(features.ATTACH_COOKIE)
        self.pattern = pattern
        tables = TableStore()
        self._targets = [_TracedProcess(image, find_functions(image, pattern, tables)) for image in map(snapshot, pids)]
        refuse_too_many([target.names for target in self._targets], pattern, min(limit, HARD_LIMIT))
        names: dict[tuple[str, str, int], Function] = {}
        for target in self._targets:
            for module in target.names.modules:
                for function in module.functions:
                    names[module.mapping.device, module.mapping.path, function.vaddr] = function
        self.functions = list(names.values())
        self._index = {key: number for number, key in enumerate(names)}
        self._refused = list(dict.fromkeys(why for target in self._targets for why in target.names.refused))
        self._throwing = sorted({name for target in self._targets for name in throwing_modules(target.image)})
        self._by_exits = bool(self._throwing) and not unwinding_risk
        self._size = 1 << (len(self.functions) + _RESERVED - 1).bit_length()
        self._stack = ExitStack()
        try:
            self._load(multi)
        except BaseException:
            self._stack.close()
            raise

    def _load(self, multi: bool) -> None:
        how = attach_type(multi=multi)
        self.program = self._stack.enter_context(
            LoadedProgram("functions.bpf.c", definitions(kernel_btf(), self._size), uprobe_type=how)
        )
        self._probes = Uprobes(self.program, how)
        self._stack.callback(self._probes.close)
        cookies = (self._size - 2, self._size - 1 | COOKIE_STEPPED)
        cost = measure_cost(self._probes, cookies, self._calibrated, by_exits=self._by_exits)
        if cost is None and self._probes.multi:
            # Before Linux 6.10 the pid filter of uprobe_multi meant one thread instead of a process.
            self._stack.close()
            self._load(False)
            return
        if cost is None:
            raise PowerprofError("function probes count nothing on this host", "powerprof profile samples instead")
        self._cost, self._stepped_cost = cost

    @property
    def danger(self) -> str | None:
        """What the probes can do to the target; None where they can do nothing."""
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

    def measure(self, duration_s: float, *, settle: bool = False) -> FunctionTrace:
        """Probe for `duration_s`. An interrupt ends the window early; the trace says so.

        `settle`: give up what root may do once the probes are placed.
        Raises PowerprofError where not one function can be probed.
        """
        return self.collect(pass_window(duration_s, self, settle=settle))

    def open(self) -> None:
        for table in ("threads", "frames"):
            self.program.clear(table)
        self._before = [self._counts(number) for number in range(len(self.functions))]
        self._counters = self.program.per_cpu_sum("counters")
        self._refused_now = self._attach()

    def begin(self) -> None:
        self._cpu_ns = [process_cpu_ns(target.image.pid) for target in self._targets]
        self._started_ns = kernel_ns()
        self._enable(True)

    def end(self) -> None:
        try:
            self._enable(False)
            self._ended_ns = kernel_ns()
            self._cpu_after_ns = [process_cpu_ns(target.image.pid) for target in self._targets]
        finally:
            self._probes.close()

    def collect(self, passed: Passed) -> FunctionTrace:
        """What was counted in the window."""
        open_frames = open_calls(self.program.hash_bytes("threads"), self.program.hash_bytes("frames"), self._ended_ns)
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
            notes=[*([self.danger] if self.danger else []), *passed.notes],
            method=("uprobe_multi" if self._probes.multi else "uprobe PMU") + (", at exits" if self._by_exits else ""),
            tool_cpu_s=passed.tool_cpu_s,
            interrupted=passed.interrupted is not None,
        )

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
            raise PowerprofError(f"{name} cannot be probed: {reason}", "powerprof profile samples it without probes")
        return refused

    def _sites(self, image: ProcessImage, module: ModuleFunctions) -> tuple[list[Site], list[tuple[str, str]]]:
        exits = exits_of(image, module) if self._by_exits else {}
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
