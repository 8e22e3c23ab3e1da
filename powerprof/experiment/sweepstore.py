# SPDX-License-Identifier: Apache-2.0
"""Sweeps in the run store: started or continued, and written again after every point, under one id."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from powerprof.errors import DataError, PowerprofError
from powerprof.experiment import sweep as sweeps
from powerprof.experiment.bench.options import BenchOptions
from powerprof.experiment.options import ExperimentOptions
from powerprof.experiment.sweep_record import Sweep
from powerprof.runs import RunStore, decode, encode, schema_of
from powerprof.text import Say
from powerprof.workloads.catalogue import find_one
from powerprof.workloads.definition import Value


@dataclass(frozen=True)
class SweepRequest:
    """A condition, what is varied in it and the values (none: those that the workload declares)."""

    condition: str
    parameter: str
    values: Sequence[Value]


class SweepStore:
    """Where a sweep is kept while it runs; `keep=False` keeps nothing."""

    def __init__(self, directory: Path | None, *, keep: bool = True) -> None:
        self._store = RunStore(directory)
        self._folder: Path | None = None
        self._keep = keep
        self._new: str | None = None

    def load(self, name: str) -> Sweep:
        """A sweep by id, folder or file. Raises UsageError, DataError."""
        path = self._store.find(name)
        if schema_of(path) != "powerprof.sweep/1":
            raise DataError(path, "not a sweep", hint="powerprof runs lists them")
        self._folder = path.parent
        return decode(path, Sweep)

    def save(self, sweep: Sweep) -> Sweep:
        """Write it whole, or leave what was there; returns it with its id. Raises PowerprofError."""
        if not self._keep:
            return sweep
        if self._folder is None:
            name, self._folder = self._store.create("sweep")
            self._new = name
            sweep = msgspec.structs.replace(sweep, id=name)
        self._store.write(self._folder, "run.json", encode(sweep))
        if sweep.points:
            self._new = None
        return sweep

    def drop_if_empty(self) -> None:
        """Take away a sweep that was refused before its first point: there is nothing to go on with."""
        if self._new is not None:
            with suppress(PowerprofError):
                self._store.remove(self._new)


def sweep(
    asked: SweepRequest | str,
    bench: Callable[[], AbstractContextManager[BenchOptions]],
    options: ExperimentOptions,
    store: SweepStore,
    *,
    extra: Sequence[Path],
    say: Say,
) -> Sweep:
    """A new sweep, or the saved one of that name continued, with the options that it was started with.

    Interrupted, it returns what there is, so marked. Raises UsageError, DataError, PowerprofError.
    """
    if isinstance(asked, str):
        record = store.load(asked)
        options = sweeps.options_of(record, options)
        workload, _ = find_one(f"{record.workload}:{record.condition.name}", extra)
    else:
        workload, condition = find_one(asked.condition, extra)
        record = sweeps.start(workload, condition, asked.parameter, asked.values, options)
    with bench() as where:
        sweeps.check_room(record, workload, where)
        record = store.save(record)
        try:
            return sweeps.go_on(record, workload, where, options, save=store.save, say=say)
        except PowerprofError:
            store.drop_if_empty()
            raise
