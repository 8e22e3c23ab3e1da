# SPDX-License-Identifier: Apache-2.0
"""Counts, in the kernel, what each statement of a server uses: from where a command is dispatched to its next wait."""

from __future__ import annotations

import os
import struct
from contextlib import ExitStack

from powerprof.closeable import Closeable
from powerprof.errors import CapabilityError, PowerprofError
from powerprof.processes.namespaces import check_process_ids
from powerprof.processes.reader_process import Opened
from powerprof.sources.clock import kernel_ns
from powerprof.stacks.image import snapshot
from powerprof.stacks.store import open_probed
from powerprof.statements.identity import Family, table
from powerprof.tracing.bpf.btf import kernel_btf
from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.bpf.probe_cost import entry_cost_ns
from powerprof.tracing.bpf.run_time import Price
from powerprof.tracing.bpf.shared_numbers import StatementCount
from powerprof.tracing.bpf.uprobes import EVERY_PROCESS, Site, Uprobes, attach_type
from powerprof.tracing.captures.statements import StatementTrace, ThreadUse, TraceCost
from powerprof.tracing.statements import waitplaces
from powerprof.tracing.statements.activity import find_activity, texts_now
from powerprof.tracing.statements.definitions import definitions, sees_run_queue
from powerprof.tracing.statements.dispatch import find_dispatch
from powerprof.tracing.statements.members import ServerProcesses, comm, ran_ns
from powerprof.tracing.statements.tables import add_open, read_past, read_sums, read_threads, thread_use
from powerprof.tracing.statements.textplace import TextPlace, find_text, packed
from powerprof.tracing.statements.waitplaces import OF_CALL, OF_TYPE
from powerprof.windows.runner import Part

_LEAST_THREADS, _MOST_THREADS = 2048, 65_536
_MEMBER = (1).to_bytes(8, "little")
# What is read as a window begins is read again where that took longer than so, and so long for each thread.
_TOGETHER_NS, _EACH_NS, _TRIES = 2_000_000, 100_000, 5
# What hashes long texts (whole.bpf.h); without these the beginning of each stands for it.
WALKS, WALKS_SENT = ("uprobe__walk", "uprobe__walked"), ("called__walk", "called__walked")
_TABLES = ("threads", "totals", "latencies", "texts", "pieces")
_PAST = ("deaths", "pasts")
_OFF_CLOCK = struct.Struct("<32xQ")  # struct off_clock: the last of it
_NUMBERED = ("prepared", "connections")  # of statements that are executed by number


class QueryTracer(Closeable, Part):
    """The probes of one server; a context manager that removes them. The server outlives every ending of ours: a
    uprobe's breakpoint is the kernel's, and goes with our descriptor."""

    def __init__(
        self, pid: int, family: Family = "mysql", *, multi: bool = True, sends: bool = True, stacks: bool = False
    ) -> None:
        """Find the function, load the program, measure what a probe costs. Nothing of the server is probed yet.

        `pid` of PostgreSQL is the process that started all the others.
        `stacks`: the program has a part for an OnCpuTracer beside, whose samples are counted by statement.
        `multi`, `sends`: use uprobe_multi links (Linux 6.6), and the tracepoint of sockets (6.3), where there are any.
        Raises CapabilityError where this host or this server cannot, PowerprofError where the process is gone.
        """
        if os.uname().machine != "x86_64":
            raise CapabilityError(f"statements are probed on x86_64, not on {os.uname().machine}", "--method samples")
        check_process_ids()
        self.pid, self.family, self._has_stacks = pid, family, stacks
        self.members = ServerProcesses(pid, is_family=family == "postgresql")
        self._image = snapshot(pid)
        self.dispatch = find_activity(self._image) if self.members.is_family else find_dispatch(self._image)
        self._stack = ExitStack()
        self._price: Price | None = None
        self._ended_ns = 0
        self.gap_before_s: float | None = None
        try:
            self._load(multi, sends)
        except BaseException:
            self._stack.close()
            raise

    def _load(self, multi: bool, sends: bool) -> None:
        btf = kernel_btf()
        self._has_send = sends and btf.has_tracepoint("sock_send_length")
        if not self._has_send and not self.members.is_family and self.dispatch.waits_offset is None:
            raise CapabilityError(
                "neither the kernel nor do_command shows where a statement ends", "Linux 6.3 or newer"
            )
        # A power of two: where it is compiled here each size is a program of its own.
        threads = min(max(1 << (4 * len(self.members.tids())).bit_length(), _LEAST_THREADS), _MOST_THREADS)
        how = attach_type(multi=multi)
        self._has_run_queue = sees_run_queue(btf)
        server = self.dispatch.layout, self.dispatch.version
        wanted = definitions(btf, *server, threads, sends=self._has_send, stacks=self._has_stacks)
        self.program = self._stack.enter_context(
            LoadedProgram("queries.bpf.c", wanted, uprobe_type=how, optional=(*WALKS, *WALKS_SENT))
        )
        self._probes = Uprobes(self.program, how)
        self._stack.callback(self._probes.close)
        self.program.put("table", 0, table(self.family))
        self.program.put_programs("walks", WALKS)
        if not self.members.is_family and (place := self._place()) is not None:
            self.program.put("place_of", 0, packed(place))
            if self._has_send:
                self.program.put_programs("walks_sent", WALKS_SENT)
        for name, waits in (("wait_of_call", OF_CALL), ("wait_of_type", OF_TYPE)):
            for number, value in waitplaces.packed(waits).items():
                self.program.put(name, number, value)
        if self.dispatch.event_address is not None:
            self.program.put("event_place", 0, self.dispatch.event_address.to_bytes(8, "little"))
        for address, kind in self.dispatch.sites.items():
            self.program.put("messages", address.to_bytes(8, "little"), kind.to_bytes(4, "little"))
        self.program.count_run_time()
        self._switch(os.getpid())
        hits = self._hits()
        call_ns = entry_cost_ns(self._probes)
        self._switch(0)
        seen = self._hits() - hits
        if not seen and self._probes.multi:
            # Before Linux 6.10 the pid filter of uprobe_multi meant one thread instead of a process.
            self._stack.close()
            self._load(False, sends)
            return
        if not seen:
            raise PowerprofError(
                "probes of functions count nothing on this host", "--method samples does without probes"
            )
        inside = self.program.run_time_s()
        self.program.stop_counting()
        self._trap_ns = max(call_ns - (1e9 * inside / seen if inside else 0.0), 0.0)
        self._clear()

    def _place(self) -> TextPlace | None:
        """Where the server's memory has texts; None where its program does not show that."""
        try:
            return find_text(self._image, self.family)
        except CapabilityError:
            return None

    def _switch(self, pid: int) -> None:
        """Count what this process does, and those that belong to it; 0: nothing."""
        if self.members.is_family and pid:
            self.program.put("members", pid, _MEMBER)
        self.program.put("target", 0, pid.to_bytes(8, "little"))

    def _gather(self) -> None:
        """Who belongs to the server. What they start from then on joins by itself."""
        self.program.clear("members")
        self.program.put("members", self.pid, _MEMBER)
        for _ in range(2):  # one that was started while the first look went on by one that was not known yet
            for pid in self.members.pids():
                self.program.put("members", pid, _MEMBER)

    def _counters(self) -> list[int]:
        return self.program.per_cpu_sum("counters")

    def _hits(self) -> int:
        """How often the probe was met."""
        moved = self._counters()
        return _hits_of(moved)

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
        """Place the probe, where it is not yet. Raises PowerprofError where the kernel refuses it."""
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
            # A server's processes come and go: the probe is every process's that runs this file.
            whose = EVERY_PROCESS if self.members.is_family else self.pid
            within = (*dispatch.within.items(), *dispatch.waits)
            sites = [Site(offset, 0, (), name) for name, offset in within]
            refused = self._probes.attach(opened.fd, whose, [Site(dispatch.offset, 0, ends), *sites])
        refused = [(site, why) for site, why in refused if site.offset == dispatch.offset]
        if refused:
            raise PowerprofError(
                f"{dispatch.symbol} cannot be probed: {refused[0][1]}", "--method samples does without probes"
            )

    def detach(self) -> None:
        """Count nothing, and take the probe away."""
        self._switch(0)
        self._probes.close()

    def running(self) -> dict[int, str]:
        """Thread → the text that it executes now, as far as the server's memory tells."""
        address = self.dispatch.text_address
        return {} if address is None else texts_now(self.members.pids(), address)

    def begin(self, *, timed: bool = True) -> None:
        """A window begins, with nothing of the last one. `timed`: the time of the programs is asked for."""
        self._clear()
        self._price = None
        if timed:
            self._price = Price(self.program, lambda: self._counters()[0])
            self._price.begin()
        if self.members.is_family:
            self._gather()
        for left in reversed(range(_TRIES)):
            self._before = self._counters()
            looked_ns = kernel_ns()
            self._base = {tid: ran for tid in self.members.tids() if (ran := ran_ns(tid)) is not None}
            self._cpu_ns = self.members.cpu_ns()
            self._started_ns = kernel_ns()
            self._switch(self.pid)
            # Else others ran in our place meanwhile, the server's threads for some.
            if not left or kernel_ns() - looked_ns < _TOGETHER_NS + len(self._base) * _EACH_NS:
                break
            self._switch(0)
            self._clear()
        self.gap_before_s = (self._started_ns - self._ended_ns) / 1e9 if self._ended_ns else None

    def end(self) -> None:
        """The window ends; the probe stays, for another."""
        looked_ns, cpu_ns = kernel_ns(), self.members.cpu_ns()
        self._switch(0)
        self._ended_ns = kernel_ns()
        after_ns, over_ns = self.members.cpu_ns(), kernel_ns()
        if self._cpu_ns is not None and cpu_ns is not None and after_ns is not None:
            # What it ran between the two looks, it is taken to have run evenly.
            part = (self._ended_ns - looked_ns) / max(over_ns - looked_ns, 1)
            self._cpu_ns = cpu_ns + round((after_ns - cpu_ns) * part) - self._cpu_ns
        else:
            self._cpu_ns = None
        if self._cpu_ns is not None and not self.members.is_family:
            # A process that has ended is whole on its parent's clock; a thread is not on its process's.
            self._cpu_ns += _OFF_CLOCK.unpack(self.program.get("off_clock", 0))[0]
        self._ran = {tid: ran for tid in self._base if (ran := ran_ns(tid)) is not None}
        self._run_s = None if self._price is None else self._price.spent_s()

    def collect(self) -> StatementTrace:
        """What was counted between `begin` and `end`."""
        moved = [now - then for then, now in zip(self._before, self._counters(), strict=True)]
        entries = self.program.entries
        sums = read_sums(entries("totals"), entries("texts"), entries("latencies"), entries("pieces"))
        threads = list(read_past(self.program.table_bytes("pasts")))
        for tid, thread, text in read_threads(entries("threads")):
            threads.append(thread_use(tid, comm(tid), thread, self._base.get(tid), self._ended_ns))
            add_open(sums, tid, thread, text, self._ended_ns)
        seen = {thread.tid for thread in threads}
        for tid, ran in self._ran.items():
            # One that was never switched ran all the time, or not at all.
            if tid not in seen and ran > self._base[tid]:
                threads.append(ThreadUse(tid, comm(tid), ran - self._base[tid], 0, 0, 0))
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
    """How often a probe was met."""
    return counters[StatementCount.DISPATCHES] + counters[StatementCount.ENDINGS]
