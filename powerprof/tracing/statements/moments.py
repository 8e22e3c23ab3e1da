# SPDX-License-Identifier: Apache-2.0
"""Samples which statement the threads of a server are at, by the text in the server's own memory, without a probe."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator

import msgspec

from powerprof.closeable import Closeable
from powerprof.errors import CapabilityError
from powerprof.processes.namespaces import check_process_ids
from powerprof.processes.tasks import clean
from powerprof.stacks.image import snapshot
from powerprof.statements.identity import Family, table
from powerprof.tracing.bpf.btf import kernel_btf
from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.bpf.shared_numbers import MomentCount
from powerprof.tracing.bpf.software_events import CPU_CLOCK, Sampler
from powerprof.tracing.captures.statements import TextSeen
from powerprof.tracing.statements.definitions import POINTERS, moment_definitions
from powerprof.tracing.statements.tables import texts_seen
from powerprof.tracing.statements.textplace import find_text, packed
from powerprof.windows.runner import Part

SAMPLE_HZ = 149  # no divisor of timers' usual rates, or samples would run in step with them
_WALKS = ("sample__walk", "sample__walked")
_MOMENT, _MET = struct.Struct("<Q2I"), struct.Struct("<Q16s")
# An interrupt is a hole in a loop that reads the clock.
_TRIED_HZ, _TRIED_S, _HOLE = 1_999, 0.05, 4


class Met(msgspec.Struct, frozen=True):
    """How often a thread was met at a statement; `id` 0 is none. `is_client`: its process says that it serves one."""

    id: int
    tid: int
    is_client: bool
    count: int
    comm: str


class Moments(msgspec.Struct, frozen=True, kw_only=True):
    """A window of samples. `events_count`: all of the host's, most of which met something else. `cost_s`: CPU time in
    the programs (`bpf_s`) and in the interrupts that they came by; None where it is not known."""

    family: Family
    met: list[Met]
    texts: list[TextSeen]
    events_count: int
    lost_count: int
    unreadable_count: int
    cut_count: int
    bpf_s: float | None
    cost_s: float | None


class MomentSampler(Closeable, Part):
    """The sampler of one server; a context manager that removes it. It wakes every CPU `SAMPLE_HZ` times a second."""

    def __init__(self, pid: int, family: Family = "mysql") -> None:
        """Find where the texts are, load the program, measure what a sample costs.

        `pid` of PostgreSQL is the process that started all the others.
        Raises CapabilityError where this host or this server cannot, PowerprofError where the process is gone.
        """
        machine = os.uname().machine
        if machine not in POINTERS:
            raise CapabilityError(
                f"texts of statements are found on {' and '.join(POINTERS)}, not on {machine}", "measure on such a host"
            )
        check_process_ids()
        self.family, self._pid = family, pid
        place = find_text(snapshot(pid), family)
        definitions = moment_definitions(kernel_btf(), machine, postgresql=family == "postgresql")
        self.program = LoadedProgram("moments.bpf.c", definitions, optional=_WALKS)
        try:
            self.program.put("table", 0, table(family))
            self.program.put("place_of", 0, packed(place))
            self.program.put_programs("walks", _WALKS)
            self._sampler = Sampler(self.program.descriptor("sample__moment"))
            self._sample_ns = self._tried()
        except BaseException:
            self.program.close()
            raise

    def close(self) -> None:
        self._sampler.close()
        self.program.close()

    def _tried(self) -> float | None:
        """What a sample of something else takes from a CPU."""
        steps: list[int] = []
        with self._sampler:
            self._sampler.open(CPU_CLOCK, frequency_hz=_TRIED_HZ)
            last = time.perf_counter_ns()
            end = last + int(_TRIED_S * 1e9)
            while last < end:
                now = time.perf_counter_ns()
                steps.append(now - last)
                last = now
        steps.sort()
        usual = steps[len(steps) // 2]
        longest = [step - usual for step in steps[-int(_TRIED_HZ * _TRIED_S) :] if step > _HOLE * usual]
        return float(longest[len(longest) // 2]) if longest else None

    def begin(self, frequency_hz: int = SAMPLE_HZ, *, timed: bool = True) -> None:
        """Sample from now on, with nothing of the window before. `timed`: the time of the programs is asked for.

        Raises CapabilityError, PowerprofError.
        """
        for name in ("moments", "texts", "pieces"):
            self.program.clear(name)
        self._before = self.program.per_cpu_sum("counters")
        if timed:
            self.program.count_run_time()
        self._run_s = self.program.run_time_s()
        self.program.put("target", 0, self._pid.to_bytes(8, "little"))
        self._sampler.open(CPU_CLOCK, frequency_hz=frequency_hz)

    def end(self) -> None:
        self._sampler.close()

    def collect(self) -> Moments:
        """What was sampled between `begin` and `end`."""
        moved = [now - then for then, now in zip(self._before, self.program.per_cpu_sum("counters"), strict=True)]
        run_s = self.program.run_time_s()
        bpf_s = None if run_s is None or self._run_s is None else run_s - self._run_s
        self.program.stop_counting()
        cost_s = None
        if bpf_s is not None and self._sample_ns is not None:
            cost_s = bpf_s + moved[MomentCount.EVENTS] * self._sample_ns / 1e9
        return Moments(
            family=self.family,
            met=list(self._met()),
            texts=list(texts_seen(self.program.entries("texts"), self.program.entries("pieces"))),
            events_count=moved[MomentCount.EVENTS],
            lost_count=moved[MomentCount.NO_ROOM],
            unreadable_count=moved[MomentCount.UNREADABLE],
            cut_count=moved[MomentCount.CUT],
            bpf_s=bpf_s,
            cost_s=cost_s,
        )

    def _met(self) -> Iterator[Met]:
        for key, value in self.program.entries("moments"):
            id, tid, is_client = _MOMENT.unpack(key)
            count, comm = _MET.unpack(value)
            yield Met(id, tid, bool(is_client), count, clean(comm.partition(b"\0")[0]))
