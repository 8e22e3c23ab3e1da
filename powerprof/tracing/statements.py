# SPDX-License-Identifier: Apache-2.0
"""Count in the kernel the resources of each statement of a server, from the dispatch of a command to its next wait."""

from __future__ import annotations

import os
import struct
from contextlib import ExitStack

from powerprof.measure.clock import kernel_ns
from powerprof.measure.window import WindowPart
from powerprof.model.identities import Family, build_tables
from powerprof.stacks.image import snapshot
from powerprof.stacks.store import open_probed
from powerprof.system.closeable import Closeable
from powerprof.system.errors import CapabilityError, PowerprofError
from powerprof.system.pid_namespaces import check_process_ids
from powerprof.system.reader_process import Opened
from powerprof.tracing import mysql_places, postgresql_places
from powerprof.tracing.bpf.btf import read_kernel_btf
from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.bpf.mapped_files import UnfitFileError
from powerprof.tracing.bpf.probe_cost import measure_entry_cost_ns
from powerprof.tracing.bpf.run_time_meter import RunTimeMeter
from powerprof.tracing.bpf.shared_numbers import StatementCount
from powerprof.tracing.bpf.uprobes import Site, Uprobes, choose_attach_type
from powerprof.tracing.captures import StatementTrace, ThreadUse, TraceCost
from powerprof.tracing.postgresql_places import read_running_texts
from powerprof.tracing.server_processes import ServerProcesses, read_comm, read_run_ns
from powerprof.tracing.statement_definitions import build_query_definitions, has_run_queue
from powerprof.tracing.statement_places import TextPlace, is_dispatch_copied, pack_text_place
from powerprof.tracing.statement_tables import (
    add_open_statement,
    compute_thread_use,
    correct_begin,
    read_ended_threads,
    read_sums,
    read_threads,
)
from powerprof.tracing.symbols import COPIED
from powerprof.tracing.waits import WAIT_OF_SYSCALL, WAIT_OF_TYPE, pack_waits

_LEAST_THREADS, _MOST_THREADS = 2048, 65_536
_MEMBER = (1).to_bytes(8, "little")
# The readings at the beginning of a window are repeated if they took longer than this, plus the time per thread.
_TOGETHER_NS, _EACH_NS, _TRIES = 2_000_000, 100_000, 5
# Programs that hash long texts (long_texts.bpf.h). Without them the beginning of each text represents it.
_HASH_PROGRAMS = ("uprobe__hash_pieces", "uprobe__finish_hash")
_OPEN_HASH_PROGRAMS = ("called__hash_pieces", "called__finish_hash")
_TABLES = ("threads", "totals", "latencies", "texts", "pieces")
_PAST = ("exited_count", "exited_totals")
_OFF_CLOCK = struct.Struct("<32xQ")  # struct off_clock: the last of it
_NUMBERED = ("prepared", "connections")  # of statements that are executed by number


class QueryTracer(Closeable, WindowPart):
    """The probes of one server. A context manager that removes them.

    The server survives however powerprof ends: a uprobe's breakpoint belongs to the kernel and is removed with our
    descriptor.
    """

    def __init__(
        self, pid: int, family: Family = "mysql", *, multi: bool = True, sends: bool = True, stacks: bool = False
    ) -> None:
        """Find the function, load the program and measure the cost of a probe. The server is not probed yet.

        `pid` of PostgreSQL is the process that started all others. `stacks`: add the part for an OnCpuTracer, whose
        samples are counted by statement. `multi`, `sends`: use uprobe_multi links (Linux 6.6) and the tracepoint of
        sockets (6.3) if the kernel has them.

        Raises CapabilityError if this host or server cannot be probed, PowerprofError if the process has ended.
        """
        if os.uname().machine != "x86_64":
            raise CapabilityError(f"statements are probed on x86_64, not on {os.uname().machine}", "--method samples")
        check_process_ids()
        self.pid, self.family, self._has_stacks = pid, family, stacks
        self.members = ServerProcesses(pid, is_family=family == "postgresql")
        self._image = snapshot(pid)
        find_dispatch = postgresql_places.find_dispatch if self.members.is_family else mysql_places.find_dispatch
        self.dispatch = find_dispatch(self._image)
        if is_dispatch_copied(self._image, self.dispatch):
            raise CapabilityError(
                f"{self.dispatch.symbol} of {self.dispatch.mapping.module} cannot be probed: {COPIED}",
                "--method samples does without probes",
            )
        self._stack = ExitStack()
        self._price: RunTimeMeter | None = None
        self._ended_ns = 0
        self.gap_before_s: float | None = None
        try:
            self._load(multi, sends)
        except BaseException:
            self._stack.close()
            raise

    def _load(self, multi: bool, sends: bool) -> None:
        btf = read_kernel_btf()
        self._has_send = sends and btf.has_tracepoint("sock_send_length")
        if not self._has_send and not self.members.is_family and self.dispatch.waits_offset is None:
            raise CapabilityError(
                "neither the kernel nor do_command shows where a statement ends", "Linux 6.3 or newer"
            )
        # A power of two, so that a host compiles for few sizes.
        threads = min(max(1 << (4 * len(self.members.tids())).bit_length(), _LEAST_THREADS), _MOST_THREADS)
        how = choose_attach_type(multi=multi)
        self._has_run_queue = has_run_queue(btf)
        server = self.dispatch.layout, self.dispatch.version
        wanted = build_query_definitions(btf, *server, threads, sends=self._has_send, stacks=self._has_stacks)
        self.program = self._stack.enter_context(
            LoadedProgram("queries.bpf.c", wanted, uprobe_type=how, optional=(*_HASH_PROGRAMS, *_OPEN_HASH_PROGRAMS))
        )
        self._probes = Uprobes(self.program, how, btf)
        self._stack.callback(self._probes.close)
        for slot, table in enumerate(build_tables(self.family)):
            self.program.put("hash_rules", slot, table)
        self.program.put_programs("hash_programs", _HASH_PROGRAMS)
        self.program.put_programs("open_hash_programs", _OPEN_HASH_PROGRAMS)
        if (place := self._place()) is not None:
            self.program.put("text_places", 0, pack_text_place(place))
        for name, waits in (("wait_of_syscall", WAIT_OF_SYSCALL), ("wait_of_type", WAIT_OF_TYPE)):
            for number, value in pack_waits(waits).items():
                self.program.put(name, number, value)
        if self.dispatch.event_address is not None:
            self.program.put("event_place", 0, self.dispatch.event_address.to_bytes(8, "little"))
        for address, kind in self.dispatch.sites.items():
            self.program.put("messages", address.to_bytes(8, "little"), kind.to_bytes(4, "little"))
        self.program.count_run_time()
        self._switch(os.getpid())
        hits = _hits_of(self._counters())
        call_ns = measure_entry_cost_ns(self._probes)
        self._switch(0)
        seen = _hits_of(self._counters()) - hits
        if not seen and self._probes.multi:
            # Before Linux 6.10 the pid filter of uprobe_multi selected one thread instead of a process.
            self._stack.close()
            self._load(False, sends)
            return
        if not seen:
            raise PowerprofError("probes of functions count nothing on this host", "use --method samples")
        inside = self.program.run_time_s()
        self.program.stop_counting()
        self._trap_ns = max(call_ns - (1e9 * inside / seen if inside else 0.0), 0.0)
        self._clear()

    def _place(self) -> TextPlace | None:
        """Return the place of texts in the server's memory, or None if its program does not show it."""
        try:
            if self.members.is_family:
                return postgresql_places.find_text(self._image)
            return mysql_places.find_text(self._image)
        except CapabilityError:
            return None

    def _switch(self, pid: int) -> None:
        """Count this process and its family; 0 stops counting."""
        if self.members.is_family and pid:
            self.program.put("members", pid, _MEMBER)
        if pid:
            self.program.put("target", 1, kernel_ns().to_bytes(8, "little"))
        self.program.put("target", 0, pid.to_bytes(8, "little"))

    def _gather(self) -> None:
        """Set the server's processes. The kernel adds the processes that they start from then on."""
        self.program.clear("members")
        self.program.put("members", self.pid, _MEMBER)
        # The first pass can miss a process that an unknown process starts meanwhile.
        for _ in range(2):
            for pid in self.members.pids():
                self.program.put("members", pid, _MEMBER)

    def _counters(self) -> list[int]:
        return self.program.per_cpu_sum("counters")

    def _clear(self) -> None:
        for name in _TABLES if self.members.is_family else (*_TABLES, *_NUMBERED):
            self.program.clear(name)
        for name in _PAST if self.members.is_family else (*_PAST, "off_clock"):
            for slot in range(self.program.slots(name)):
                self.program.put(name, slot, bytes(len(self.program.get(name, slot))))

    def close(self) -> None:
        if self._price is not None:
            self._price.close()
        self._stack.close()

    def attach(self) -> None:
        """Place the probe unless it is placed. Raises PowerprofError if the kernel refuses it."""
        self.program.attach()
        if self._probes.attached:
            return
        dispatch = self.dispatch
        opened = open_probed(self._image, dispatch.mapping)
        if not isinstance(opened, Opened):
            raise PowerprofError(
                f"{dispatch.mapping.module} cannot be probed: {opened}", "--method samples does without probes"
            )
        ends = () if self._has_send or dispatch.waits_offset is None else (dispatch.waits_offset,)
        with opened:
            # A server's processes come and go, so every process that runs this file is probed.
            within = (*dispatch.within.items(), *dispatch.waits)
            sites = [Site(offset, 0, (), name) for name, offset in within]
            places = [Site(dispatch.offset, 0, ends), *sites]
            try:
                refused = self._probes.attach(opened.fd, self.pid, places, every_process=self.members.is_family)
            except UnfitFileError as error:
                error.hint = "--method samples does without probes"
                raise
        refused = [(site, why) for site, why in refused if site.offset == dispatch.offset]
        if refused:
            raise PowerprofError(
                f"{dispatch.symbol} cannot be probed: {refused[0][1]}", "--method samples does without probes"
            )

    def detach(self) -> bool:
        """Stop counting and remove the probe. Return whether a helper process has to remove it later."""
        self._switch(0)
        self.program.detach()
        self._probes.close()
        return self._probes.is_left

    def forget(self) -> None:
        """Forget the statements that threads execute."""
        self.program.clear("threads")

    def read_traps(self) -> tuple[float, int]:
        """Return the time in traps of probes so far in seconds, and their number."""
        hits = _hits_of(self._counters())
        return self._trap_ns * hits / 1e9, hits

    def running(self) -> dict[int, str]:
        """Return the texts that threads execute now, as far as the server's memory contains them."""
        address = self.dispatch.text_address
        return {} if address is None else read_running_texts(self.members.pids(), address)

    def begin(self, *, timed: bool = True) -> None:
        """Begin a window without data of the last one. `timed`: measure the CPU time of the programs."""
        self._clear()
        self._price = None
        if timed:
            self._price = RunTimeMeter(self.program, lambda: self._counters()[0])
            self._price.begin()
        if self.members.is_family:
            self._gather()
        for left in reversed(range(_TRIES)):
            self._before = self._counters()
            looked_ns = kernel_ns()
            self._base = {tid: ran for tid in self.members.tids() if (ran := read_run_ns(tid)) is not None}
            self._cpu_ns = self.members.cpu_ns()
            self._started_ns = kernel_ns()
            self._switch(self.pid)
            # A longer time means that other threads ran in between, some of them the server's.
            if not left or kernel_ns() - looked_ns < _TOGETHER_NS + len(self._base) * _EACH_NS:
                break
            self._switch(0)
            self._clear()
        self.gap_before_s = (self._started_ns - self._ended_ns) / 1e9 if self._ended_ns else None

    def end(self) -> None:
        """End the window. The probe stays for another one."""
        looked_ns, cpu_ns = kernel_ns(), self.members.cpu_ns()
        self._switch(0)
        self._ended_ns = kernel_ns()
        after_ns, over_ns = self.members.cpu_ns(), kernel_ns()
        if self._cpu_ns is not None and cpu_ns is not None and after_ns is not None:
            # Assume that the server's CPU time between the two readings is evenly distributed.
            part = (self._ended_ns - looked_ns) / max(over_ns - looked_ns, 1)
            self._cpu_ns = cpu_ns + round((after_ns - cpu_ns) * part) - self._cpu_ns
        else:
            self._cpu_ns = None
        if self._cpu_ns is not None and not self.members.is_family:
            # The parent's clock contains all time of an ended process. A process's clock misses time of ended threads.
            self._cpu_ns += _OFF_CLOCK.unpack(self.program.get("off_clock", 0))[0]
        self._ran = {tid: ran for tid in self._base if (ran := read_run_ns(tid)) is not None}
        self._run_s = None if self._price is None else self._price.spent_s()

    def collect(self) -> StatementTrace:
        """Return the counts between `begin` and `end`."""
        moved = [now - then for then, now in zip(self._before, self._counters(), strict=True)]
        entries = self.program.entries
        sums = read_sums(entries("totals"), entries("texts"), entries("latencies"), entries("pieces"))
        threads = list(read_ended_threads(self.program.table_bytes("exited_totals")))
        for tid, thread, text in read_threads(entries("threads")):
            base_ns = self._base.get(tid)
            threads.append(compute_thread_use(tid, read_comm(tid), thread, base_ns, self._ended_ns))
            add_open_statement(sums, tid, thread, text, self._ended_ns)
            correct_begin(sums, tid, thread, base_ns, self._ended_ns)
        seen = {thread.tid for thread in threads}
        for tid, ran in self._ran.items():
            # A thread that was never switched ran all the time, or not at all.
            if tid not in seen and ran > self._base[tid]:
                threads.append(ThreadUse(tid, read_comm(tid), ran - self._base[tid], 0, 0, 0))
        return StatementTrace(
            pid=self.pid,
            window_s=(self._ended_ns - self._started_ns) / 1e9,
            family=self.family,
            symbol=self.dispatch.symbol,
            is_sure=self.dispatch.is_sure,
            has_run_queue=self._has_run_queue,
            tells_locks=bool(self.dispatch.waits or self.dispatch.event_address),
            ends_by="send" if self._has_send else "report" if self.members.is_family else "do_command",
            process_cpu_ns=self._cpu_ns,
            uses=list(sums.uses.values()),
            texts=list(sums.texts.values()),
            threads=threads,
            latencies=sums.latencies,
            dispatches_count=moved[StatementCount.DISPATCHES],
            lost_count=moved[StatementCount.NO_ROOM],
            unreadable_count=moved[StatementCount.UNREADABLE],
            cut_count=moved[StatementCount.CUT],
            cost=TraceCost(bpf_s=self._run_s, trap_ns=self._trap_ns * _hits_of(moved)),
        )


def _hits_of(counters: list[int]) -> int:
    """Return the number of hits in these counters."""
    return counters[StatementCount.DISPATCHES] + counters[StatementCount.ENDINGS]
