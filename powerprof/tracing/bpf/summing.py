# SPDX-License-Identifier: Apache-2.0
"""A program that sums into tables of the kernel while its window is open; each window begins with empty tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from powerprof.closeable import Closeable
from powerprof.processes.namespaces import check_process_ids
from powerprof.tracing.bpf.btf import Btf
from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.windows.runner import Part

_MEMBER = (1).to_bytes(8, "little")


class SummingProgram(Closeable, Part):
    """One with the tables `targets`, `is_open` and `counters`, loaded; a context manager that removes it.

    `lost` and the like are what its `counters` rose by since the window was opened, and so is its own time.
    """

    def __init__(
        self,
        name: str,
        definitions: Mapping[str, int | str],
        btf: Btf,
        pids: Sequence[int] | None,
        tables: Sequence[str],
        entries: Mapping[str, Mapping[int, bytes]] | None = None,
    ) -> None:
        """Load `probes/bpf/<name>` for these processes, None where its definitions say every one. `tables` are emptied
        before each window, `entries` are put into others once.

        Raises CapabilityError where this host or user may not, PowerprofError where the kernel refuses the program.
        """
        check_process_ids()
        self._tables = tables
        self._ran_s: float | None = None
        self._counted: Sequence[int] = ()
        self._program = LoadedProgram(name, definitions, btf=btf)
        try:
            members = {"targets": dict.fromkeys(pids or (), _MEMBER)}
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
        """Tables with nothing of a window before."""
        for table in self._tables:
            self._program.clear(table)
        self._ran_s, self._counted = self._program.run_time_s(), self._program.per_cpu_sum("counters")

    def begin(self) -> None:
        """The program counts from here."""
        self._count(1)

    def end(self) -> None:
        """To here."""
        self._count(0)

    def _count(self, value: int) -> None:
        self._program.put("is_open", 0, value.to_bytes(8, "little"))

    def rows(self, table: str) -> tuple[bytes, bytes]:
        """Every key and every value of a table, one after the other."""
        return self._program.hash_bytes(table)

    def counters(self) -> list[int]:
        """What each has risen by since the window was opened."""
        return [now - then for then, now in zip(self._counted, self._program.per_cpu_sum("counters"), strict=True)]

    def bpf_s(self) -> float | None:
        """The program's own CPU time in the window; None where the kernel does not count it."""
        now_s = self._program.run_time_s()
        return None if now_s is None or self._ran_s is None else now_s - self._ran_s
