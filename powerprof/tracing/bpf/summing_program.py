# SPDX-License-Identifier: Apache-2.0
"""Run a program that sums into tables of the kernel while its window is open."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from powerprof.measure.window import WindowPart
from powerprof.system.closeable import Closeable
from powerprof.system.pid_namespaces import check_process_ids
from powerprof.tracing.bpf.btf import Btf
from powerprof.tracing.bpf.cost_meter import CostMeter
from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.followed import LOOK_S, FollowedProcesses

_MEMBER = (1).to_bytes(8, "little")


class SummingProgram(Closeable, WindowPart):
    """A loaded program that sums into tables while its window is open. A context manager that removes it.

    The program has the tables `targets`, `is_open` and `counters`. Each window begins with empty tables.
    """

    def __init__(
        self,
        name: str,
        definitions: Mapping[str, int | str],
        btf: Btf,
        followed: FollowedProcesses | None,
        tables: Sequence[str],
        entries: Mapping[str, Mapping[int, bytes]] | None = None,
    ) -> None:
        """Load `probes/bpf/<name>` for the followed processes, or for every process if its definitions request that.

        `tables` are emptied before each window. `entries` are written to other tables once.

        Raises CapabilityError if this host or user may not, PowerprofError if the kernel refuses the program.
        """
        check_process_ids()
        self._tables, self._followed = tables, followed
        self._ran_s: float | None = None
        self._counted: Sequence[int] = ()
        self._program = LoadedProgram(name, definitions, btf=btf)
        try:
            members = {"targets": dict.fromkeys(followed.pids if followed is not None else (), _MEMBER)}
            for table, rows in {**members, **(entries or {})}.items():
                for key, value in rows.items():
                    self._program.put(table, key, value)
            self._program.count_run_time()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._program.close()

    def open(self) -> None:
        """Attach the program and empty the tables."""
        self._program.attach()
        for table in self._tables:
            self._program.clear(table)
        self._ran_s, self._counted = self._program.run_time_s(), self._program.per_cpu_sum("counters")

    @property
    def read_interval_s(self) -> float:
        """The interval of looks for processes that join the target, in seconds."""
        return LOOK_S if self._followed is not None and self._followed.may_grow else math.inf

    def begin(self) -> None:
        """Start counting."""
        if self._followed is not None:
            self._followed.begin()
            self._add(self._followed.pids)
        self._count(1)

    def read(self) -> None:
        """Count the processes that joined the target."""
        if self._followed is not None:
            self._add(self._followed.find_new())

    def end(self) -> None:
        """Stop counting, and detach the program."""
        self._count(0)
        self._program.detach()
        if self._followed is not None:
            self._followed.end()

    def _add(self, pids: Iterable[int]) -> None:
        for pid in pids:
            self._program.put("targets", pid, _MEMBER)

    def pids(self) -> list[int]:
        """Return the processes of the target; none for every process."""
        return self._followed.pids if self._followed is not None else []

    def notes(self) -> list[str]:
        """Return notes about processes that joined the target."""
        return self._followed.notes() if self._followed is not None else []

    def _count(self, value: int) -> None:
        self._program.put("window_open", 0, value.to_bytes(8, "little"))

    def meter(self, events: Callable[[], float]) -> CostMeter:
        """Return the meter of the program's cost. Its clock never stops: the price of an event is not constant."""
        return CostMeter(self._program, events, enough=math.inf)

    def rows(self, table: str) -> tuple[bytes, bytes]:
        """Return all keys and all values of a table as bytes."""
        return self._program.hash_bytes(table)

    def counters(self) -> list[int]:
        """Return the growth of each counter since the window was opened."""
        return [now - then for then, now in zip(self._counted, self._program.per_cpu_sum("counters"), strict=True)]

    def bpf_s(self) -> float | None:
        """Return the program's own CPU time in the window in seconds, or None if the kernel does not count it."""
        now_s = self._program.run_time_s()
        return None if now_s is None or self._ran_s is None else now_s - self._ran_s
