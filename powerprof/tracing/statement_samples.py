# SPDX-License-Identifier: Apache-2.0
"""Sample the statement of each thread in the memory of a server, without a probe."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence

import msgspec

from powerprof.measure.window import WindowPart
from powerprof.model.identities import Family, build_tables
from powerprof.model.records import Note
from powerprof.stacks.image import snapshot
from powerprof.system.closeable import Closeable
from powerprof.system.errors import CapabilityError
from powerprof.system.pid_namespaces import check_process_ids
from powerprof.system.tasks import clean
from powerprof.tracing import mysql_places, postgresql_places
from powerprof.tracing.bpf.btf import read_kernel_btf
from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.bpf.sampler import Sampler
from powerprof.tracing.bpf.shared_numbers import MomentCount
from powerprof.tracing.captures import RecordedText
from powerprof.tracing.statement_definitions import POINTERS, build_moment_definitions
from powerprof.tracing.statement_places import pack_text_place
from powerprof.tracing.statement_tables import read_texts

SAMPLE_HZ = 149
_SAMPLE_HASH_PROGRAMS = ("sample__hash_pieces", "sample__finish_hash")
_MOMENT, _MET = struct.Struct("<Q2I"), struct.Struct("<Q16s")


class SampledThread(msgspec.Struct, frozen=True):
    """The number of samples of a thread at a statement; `id` 0 is no statement.

    `is_client`: its process serves a client.
    """

    id: int
    tid: int
    is_client: bool
    count: int
    comm: str


class StatementSamples(msgspec.Struct, frozen=True, kw_only=True):
    """A window of samples.

    `events_count`: all samples of the host, most of which met something else. `bpf_s`: CPU time of the programs.
    `cost_s`: with the interrupts that start them. None if unknown. `sampled_ms`: the time of all CPUs that was
    sampled. `notes`: on CPUs that were not sampled.
    """

    family: Family
    met: list[SampledThread]
    texts: list[RecordedText]
    events_count: int
    lost_count: int
    unreadable_count: int
    cut_count: int
    bpf_s: float | None
    cost_s: float | None
    sampled_ms: float = 0.0
    notes: Sequence[Note] = ()


class MomentSampler(Closeable, WindowPart):
    """The sampler of one server: it reads the statement of each thread in the server's own memory, without a probe.

    A context manager that removes the sampler. It wakes every CPU `SAMPLE_HZ` times a second.

    Attributes:
        version: The version in the program of PostgreSQL, if it shows it.
    """

    def __init__(self, pid: int, family: Family = "mysql") -> None:
        """Find the texts, load the program and measure the cost of a sample.

        `pid` of PostgreSQL is the process that started all others. Raises CapabilityError if this host or server cannot
        be sampled, PowerprofError if the process has ended.
        """
        machine = os.uname().machine
        if machine not in POINTERS:
            raise CapabilityError(
                f"texts of statements are found on {' and '.join(POINTERS)}, not on {machine}", "measure on such a host"
            )
        check_process_ids()
        self.family, self._pid = family, pid
        find_text = postgresql_places.find_text if family == "postgresql" else mysql_places.find_text
        place = find_text(snapshot(pid))
        self.version = place.version
        definitions = build_moment_definitions(read_kernel_btf(), machine, postgresql=family == "postgresql")
        self.program = LoadedProgram("moments.bpf.c", definitions, optional=_SAMPLE_HASH_PROGRAMS)
        try:
            for slot, table in enumerate(build_tables(family)):
                self.program.put("hash_rules", slot, table)
            self.program.put("text_places", 0, pack_text_place(place))
            self.program.put_programs("hash_programs", _SAMPLE_HASH_PROGRAMS)
            self._sampler = Sampler(self.program.descriptor("sample__moment"))
            self._sample_ns = self._sampler.measure_sample_ns()
        except BaseException:
            self.program.close()
            raise

    def close(self) -> None:
        self._sampler.close()
        self.program.close()

    def begin(self, frequency_hz: int = SAMPLE_HZ, *, timed: bool = True) -> None:
        """Begin to sample without data of the last window. `timed`: measure the CPU time of the programs.

        Raises CapabilityError, PowerprofError.
        """
        for name in ("moments", "texts", "pieces"):
            self.program.clear(name)
        self._before = self.program.per_cpu_sum("counters")
        if timed:
            self.program.count_run_time()
        self._run_s = self.program.run_time_s()
        self.program.put("target", 0, self._pid.to_bytes(8, "little"))
        self._sampler.open_clock(frequency_hz)

    @property
    def read_interval_s(self) -> float:
        """The interval of looking for CPUs that came back, in seconds."""
        return Sampler.RENEW_S

    def read(self) -> None:
        """Sample CPUs that came back."""
        self._sampler.renew()

    def end(self) -> None:
        self._sampler.end()

    def collect(self) -> StatementSamples:
        """Return the samples between `begin` and `end`."""
        moved = [now - then for then, now in zip(self._before, self.program.per_cpu_sum("counters"), strict=True)]
        run_s = self.program.run_time_s()
        bpf_s = None if run_s is None or self._run_s is None else run_s - self._run_s
        self.program.stop_counting()
        cost_s = None
        if bpf_s is not None and self._sample_ns is not None:
            cost_s = bpf_s + moved[MomentCount.EVENTS] * self._sample_ns / 1e9
        return StatementSamples(
            family=self.family,
            met=[_decode_moment(key, value) for key, value in self.program.entries("moments")],
            texts=list(read_texts(self.program.entries("texts"), self.program.entries("pieces"))),
            events_count=moved[MomentCount.EVENTS],
            lost_count=moved[MomentCount.NO_ROOM],
            unreadable_count=moved[MomentCount.UNREADABLE],
            cut_count=moved[MomentCount.CUT],
            bpf_s=bpf_s,
            cost_s=cost_s,
            sampled_ms=self._sampler.sampled_ns / 1e6,
            notes=self._sampler.notes(),
        )


def _decode_moment(key: bytes, value: bytes) -> SampledThread:
    id, tid, is_client = _MOMENT.unpack(key)
    count, comm = _MET.unpack(value)
    return SampledThread(id, tid, bool(is_client), count, clean(comm.partition(b"\0")[0]))
