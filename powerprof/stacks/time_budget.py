# SPDX-License-Identifier: Apache-2.0
"""Limits of bytes and CPU time for reading the files of processes, per process, account and run.

A file that only root or we can write is read without a limit, once. Any other file may be made to be expensive, and
its owner may run many such processes; the rest of the run's budget is for other accounts. Files beyond the budget are
left out, with a note.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import msgspec

from powerprof.system.errors import DataError
from powerprof.system.reader_process import account_of_process

# Tables need up to twice the bytes that are read for them: 40 MiB take less than 100 MB of memory.
PROCESS_BYTES = 40 << 20
# A symbol takes up to twice this in memory while its table is built, and less in the file.
SYMBOL_BYTES = 48
PROCESS_S = 2.0
RUN_BYTES = 256 << 20
RUN_S = 20.0
# One account gets three quarters of that.
ACCOUNT_BYTES, ACCOUNT_S = 3 * RUN_BYTES // 4, 0.75 * RUN_S


class Purse(msgspec.Struct):
    """The remaining budget of a process or account."""

    bytes_left: int = PROCESS_BYTES
    seconds_left: float = PROCESS_S


class Budget(msgspec.Struct):
    """The remaining budget of a run. `left_out`: the processes with files that were left out."""

    bytes_left: int = RUN_BYTES
    seconds_left: float = RUN_S
    left_out: dict[int, None] = msgspec.field(default_factory=dict)
    _purses: dict[int, Purse] = msgspec.field(default_factory=dict)
    _accounts: dict[int, Purse] = msgspec.field(default_factory=dict)
    _account_of: dict[int, int] = msgspec.field(default_factory=dict)

    def meter(self, pid: int) -> BudgetMeter:
        """Return a context manager that counts bytes and CPU time for a process and its account."""
        if pid not in self._account_of:
            self._account_of[pid] = account_of_process(pid)
        account = self._accounts.setdefault(self._account_of[pid], Purse(ACCOUNT_BYTES, ACCOUNT_S))
        return BudgetMeter(self, (self._purses.setdefault(pid, Purse()), account), pid)

    def metered(self, pid: int, trusted: bool) -> AbstractContextManager[BudgetMeter | None]:
        """Return the meter of a process, or None in its place for a file that only root or we can write."""
        return nullcontext() if trusted else self.meter(pid)

    def notes(self) -> list[str]:
        """Return one line if files were left out."""
        if not self.left_out:
            return []
        shown = ", ".join(str(pid) for pid in list(self.left_out)[:5])
        more = f" and {len(self.left_out) - 5:,} more" if len(self.left_out) > 5 else ""
        return [
            f"files of {len(self.left_out):,} processes were left out ({shown}{more}): they took more than "
            f"{PROCESS_S:g} s or {PROCESS_BYTES >> 20} MiB each, {ACCOUNT_S:g} s or {ACCOUNT_BYTES >> 20} MiB per "
            f"account, or {RUN_S:g} s or {RUN_BYTES >> 20} MiB together"
        ]


class DebugBudgetError(DataError):
    """Debug information that would take more memory than the budget of a run."""


class DebugBudget(msgspec.Struct):
    """The budget of a run for debug information: bytes that are held at once, and CPU time."""

    bytes_left: int = 64 << 20
    seconds_left: float = 5.0

    @contextmanager
    def holding(self, size: int) -> Iterator[None]:
        """Reserve bytes, which stay reserved unless the block fails. Raises DebugBudgetError if too few are left."""
        if size > self.bytes_left:
            raise DebugBudgetError("debug information", f"would take {size:,} bytes")
        self.bytes_left -= size
        try:
            yield
        except BaseException:
            self.release(size)
            raise

    def release(self, size: int) -> None:
        """Return reserved bytes to the budget."""
        self.bytes_left += size


class BudgetMeter:
    """A context manager that counts requested bytes and elapsed CPU time."""

    def __init__(self, budget: Budget, purses: Sequence[Purse], pid: int) -> None:
        self._budget, self._pid = budget, pid
        self._payers: tuple[Budget | Purse, ...] = (budget, *purses)
        self._from_s = time.thread_time()

    def __enter__(self) -> BudgetMeter:
        self._from_s = time.thread_time()
        return self

    def __exit__(self, *_: object) -> None:
        self._pass_time()

    def charge_only(self, seconds: float) -> None:
        """Count only these seconds of the time so far."""
        self._from_s = time.thread_time() - seconds

    def _pass_time(self) -> None:
        now_s = time.thread_time()
        for payer in self._payers:
            payer.seconds_left -= now_s - self._from_s
        self._from_s = now_s

    def take(self, size: int, path: str) -> None:
        """Take `size` bytes before they are read. Raises DataError beyond the limit of bytes or time."""
        self._pass_time()
        for payer in self._payers:
            payer.bytes_left -= size
        if min(payer.bytes_left for payer in self._payers) < 0:
            # The bytes were not read: the next file may be small enough.
            for payer in self._payers:
                payer.bytes_left += size
            self._budget.left_out[self._pid] = None
            raise DataError(path, "left out: the files of its process are too large")
        if min(payer.seconds_left for payer in self._payers) < 0:
            self._budget.left_out[self._pid] = None
            raise DataError(path, "left out: the files of its process take too long")
