"""Sweeps in the run store: written anew after every point, under one id."""

from __future__ import annotations

from pathlib import Path

import msgspec

from powerprof.errors import DataError
from powerprof.experiment.sweep import Sweep
from powerprof.runs import RunStore, decode, encode, schema_of


class SweepStore:
    """Where a sweep is kept while it runs; `keep=False` keeps nothing."""

    def __init__(self, directory: Path | None, *, keep: bool = True) -> None:
        self._store = RunStore(directory)
        self._folder: Path | None = None
        self._keep = keep

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
            sweep = msgspec.structs.replace(sweep, id=name)
        self._store.write(self._folder, "run.json", encode(sweep))
        return sweep
