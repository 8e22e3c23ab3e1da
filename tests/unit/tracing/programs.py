# SPDX-License-Identifier: Apache-2.0
"""The tables of a loaded program, without a kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import numpy as np

from powerprof.tracing.bpf.loaded import LoadedProgram


class FakeProgram:
    """Arrays by slot (`arrays`), hash tables by key (`hashes`), counters and the programs' own time, all settable."""

    def __init__(
        self,
        arrays: Mapping[str, list[bytes]] | None = None,
        hashes: Mapping[str, dict[bytes, bytes]] | None = None,
        counters: Mapping[str, list[int]] | None = None,
        run_s: float | None = 0.5,
    ) -> None:
        self.arrays, self.hashes = dict(arrays or {}), dict(hashes or {})
        self.counters, self.run_s = dict(counters or {}), run_s
        self.rings: dict[str, Callable[[bytes], object]] = {}
        self.pending: list[tuple[str, bytes]] = []
        self.on_table: Callable[[str], object] = lambda name: None

    def as_loaded(self) -> LoadedProgram:
        return cast(LoadedProgram, self)

    def slots(self, name: str) -> int:
        return len(self.arrays[name]) if name in self.arrays else 1000

    def table_bytes(self, name: str) -> bytes:
        self.on_table(name)
        return b"".join(self.arrays[name])

    def get(self, name: str, index: int) -> bytes:
        return self.arrays[name][index]

    def put(self, name: str, key: int | bytes, value: bytes) -> None:
        if name in self.arrays and isinstance(key, int):
            self.arrays[name][key] = value
            return
        packed = key if isinstance(key, bytes) else key.to_bytes(4, "little")
        self.hashes.setdefault(name, {})[packed] = value

    def entries(self, name: str) -> Iterator[tuple[bytes, bytes]]:
        yield from self.hashes.get(name, {}).items()

    def hash_bytes(self, name: str) -> tuple[bytes, bytes]:
        table = self.hashes.get(name, {})
        return b"".join(table), b"".join(table.values())

    def delete(self, name: str, keys: bytes) -> None:
        table = self.hashes.get(name, {})
        size = len(next(iter(table), b"1"))
        for at in range(0, len(keys), size):
            table.pop(keys[at : at + size], None)

    def clear(self, name: str) -> None:
        self.hashes.pop(name, None)

    def per_cpu_sum(self, name: str) -> list[int]:
        return list(self.counters[name])

    def run_time_s(self) -> float | None:
        return self.run_s

    @property
    def is_attached(self) -> bool:
        return True

    def stop_counting(self) -> None:
        """Do nothing: `run_s` is set by the test."""

    def ring(self, name: str, on_bytes: Callable[[bytes], object]) -> None:
        self.rings[name] = on_bytes

    def consume(self) -> None:
        pending, self.pending = self.pending, []
        for name, data in pending:
            self.rings[name](data)

    def shared(self, which: int) -> int:
        return int.from_bytes(self.hashes["shared"][int(which).to_bytes(4, "little")], "little")


def thread_key(tid: int, pid: int = 70) -> int:
    return pid << 32 | tid


def entry(kind: np.dtype[Any], **values: Any) -> bytes:
    made = np.zeros((), dtype=kind)
    for name, value in values.items():
        made[name] = value
    return made.tobytes()


def tracer(kind: type[Any], hashes: dict[str, dict[bytes, bytes]], **more: Any) -> Any:
    """Return a tracer whose counters grew by 6 and 8, and whose program ran for 0.3 s."""
    program = FakeProgram(hashes=hashes, counters={"counters": [106, 208]}, run_s=0.75)
    made = kind.__new__(kind)
    made._program, made._followed, made._counted, made._ran_s = program.as_loaded(), None, [100, 200], 0.45
    for name, value in more.items():
        setattr(made, name, value)
    return made
