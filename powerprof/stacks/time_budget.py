# SPDX-License-Identifier: Apache-2.0
"""What reading the files of processes may cost: bytes and CPU time, for one process and for all of a run.

A file that only root or we can write costs what it costs, and is read once. Any other may have been made to be costly,
and its owner may run as many processes as the system allows: what exceeds the budget is left out, with a note.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from powerprof.system.errors import DataError

# Tables need up to twice the bytes that are read for them: 40 MiB are less than 100 MB in memory.
PROCESS_BYTES = 40 << 20
# A symbol takes up to twice this in memory while its table is made, and less in the file.
SYMBOL_BYTES = 48
PROCESS_S = 2.0
RUN_BYTES = 256 << 20
RUN_S = 20.0


@dataclass
class ProcessBudget:
    """What one process may still cost."""

    bytes_left: int = PROCESS_BYTES
    seconds_left: float = PROCESS_S


@dataclass
class Budget:
    """What all processes of a run may still cost together. `left_out` are those of which files were left out."""

    bytes_left: int = RUN_BYTES
    seconds_left: float = RUN_S
    left_out: dict[int, None] = field(default_factory=dict)
    _purses: dict[int, ProcessBudget] = field(default_factory=dict)

    def meter(self, pid: int) -> BudgetMeter:
        """`with budget.meter(pid) as meter:` counts what is read within."""
        return BudgetMeter(self, self._purses.setdefault(pid, ProcessBudget()), pid)

    def metered(self, pid: int, trusted: bool) -> AbstractContextManager[BudgetMeter | None]:
        """As `meter`; None for a file that only root or we can write."""
        return nullcontext() if trusted else self.meter(pid)

    def notes(self) -> list[str]:
        """One line where anything was left out."""
        if not self.left_out:
            return []
        shown = ", ".join(str(pid) for pid in list(self.left_out)[:5])
        more = f" and {len(self.left_out) - 5:,} more" if len(self.left_out) > 5 else ""
        return [
            f"files of {len(self.left_out):,} processes were left out ({shown}{more}): they took more than "
            f"{PROCESS_S:g} s or {PROCESS_BYTES >> 20} MiB each, or {RUN_S:g} s or {RUN_BYTES >> 20} MiB together"
        ]


class DebugBudgetError(DataError):
    """Debug information that would take more memory than a run may."""


@dataclass
class DebugBudget:
    """What debug information may take in a run: bytes that are held at once, and CPU time."""

    bytes_left: int = 64 << 20
    seconds_left: float = 5.0

    def hold(self, size: int) -> None:
        """Before as many bytes are kept. Raises DataError where they are too many."""
        if size > self.bytes_left:
            raise DebugBudgetError("debug information", f"would take {size:,} bytes")
        self.bytes_left -= size

    def release(self, size: int) -> None:
        """They are kept no longer."""
        self.bytes_left += size


class BudgetMeter:
    """Counts bytes as they are asked for and CPU time as it passes. A context manager."""

    def __init__(self, budget: Budget, purse: ProcessBudget, pid: int) -> None:
        self._budget, self._purse, self._pid = budget, purse, pid
        self._from_s = time.thread_time()

    def __enter__(self) -> BudgetMeter:
        self._from_s = time.thread_time()
        return self

    def __exit__(self, *_: object) -> None:
        self._pass_time()

    def charge_only(self, seconds: float) -> None:
        """Of the time until now only these are counted."""
        self._from_s = time.thread_time() - seconds

    def _pass_time(self) -> None:
        now_s = time.thread_time()
        for account in (self._budget, self._purse):
            account.seconds_left -= now_s - self._from_s
        self._from_s = now_s

    def take(self, size: int, path: str) -> None:
        """Before `size` bytes are read. Raises DataError where they are too many, or took too long."""
        self._pass_time()
        for account in (self._budget, self._purse):
            account.bytes_left -= size
        if min(self._budget.bytes_left, self._purse.bytes_left) < 0:
            # What was refused was not read: the next file may be a small one.
            for account in (self._budget, self._purse):
                account.bytes_left += size
            self._budget.left_out[self._pid] = None
            raise DataError(path, "left out: the files of its process are too large")
        if min(self._budget.seconds_left, self._purse.seconds_left) < 0:
            self._budget.left_out[self._pid] = None
            raise DataError(path, "left out: the files of its process take too long")
