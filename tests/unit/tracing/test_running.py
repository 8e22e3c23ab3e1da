# SPDX-License-Identifier: Apache-2.0
"""How long threads ran, from looks at their slots; and what of it follows an idle exit, by the kernel's own code."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from powerprof.tracing.bpf.shared_numbers import RunKind
from powerprof.tracing.idle_data import CAUSE_SUM, CPU_STATE, RUN_SLOT, subtract_run_times

from . import machine


def slots(*threads: tuple[int, int, int, int]) -> np.ndarray:
    found = np.zeros(len(threads), dtype=RUN_SLOT)
    for one, values in zip(found, threads, strict=True):
        tid, pid, one["ns"], one["kind"] = values
        one["who"] = pid << 32 | tid
    return found


def test_what_came_since_the_last_look_is_said_once() -> None:
    """One goes on, one is new, one ran nothing; two ended, and of one of these the slot is another's."""
    last = slots((7, 5, 100, RunKind.TARGET), (0, 0, 0, 0), (9, 9, 30, 0), (8, 5, 40, RunKind.TARGET), (6, 6, 50, 0))
    now = slots((7, 5, 130, RunKind.TARGET), (3, 3, 11, 0), (9, 9, 30, 0), (0, 0, 0, 0), (4, 4, 2, RunKind.KERNEL))
    # The ended ones took 40 and 50 along, and 5 and 6 that they ran since.
    found = subtract_run_times(last, now, [56, 45])
    assert [tuple(row) for row in found.threads.tolist()] == [(7, 5, 30, 1), (3, 3, 11, 0), (4, 4, 2, 2)]
    assert (found.others_ns, found.target_ns) == (6, 5)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return machine.build(tmp_path_factory.mktemp("native"))


def period(library: ctypes.CDLL, *events: tuple[str, int, int, int], idle_ns: int = 90_000) -> tuple[int, int]:
    """Own and kernel time because of an idle exit at 5,000 ns, until the CPU idles again."""
    state = ctypes.create_string_buffer(CPU_STATE.itemsize)
    out = ctypes.create_string_buffer(library.record_bytes())
    library.enter(state, ctypes.c_uint64(1_000), 0, 1, out)
    library.leave(state, ctypes.c_uint64(5_000))
    for what, tid, ns, preempted in events:
        if what == "to":
            library.switch_to(state, ctypes.c_uint64(ns), tid, ctypes.c_uint64(0), None)
        else:
            library.departs(state, tid, ctypes.c_uint64(ns), preempted)
    total = ctypes.create_string_buffer(CAUSE_SUM.itemsize)
    assert library.ran_until(total, state, ctypes.c_uint64(idle_ns)) == 1
    found = np.frombuffer(total.raw, dtype=CAUSE_SUM)[0]
    return int(found["own_ns"]), int(found["kernel_ns"])


def test_an_exit_has_what_its_thread_runs_until_it_sleeps_and_the_kernel_before(library: ctypes.CDLL) -> None:
    alone = period(library, ("to", 7, 8_000, 0), ("from", 7, 20_000, 0))
    assert alone == (20_000, 3_000)
    # It is preempted by another, goes on, sleeps, and runs again for another reason.
    shared = period(
        library,
        *(("to", 7, 8_000, 0), ("from", 7, 20_000, 1), ("from", 9, 30_000, 1), ("from", 7, 4_000, 0)),
        *(("from", 9, 10_000, 1), ("from", 7, 5_000, 0)),
    )
    assert shared == (24_000, 3_000)
    assert period(library) == (0, 85_000)
    # A count that holds what the thread ran elsewhere: no more than this CPU ran after the kernel.
    assert period(library, ("to", 7, 8_000, 0), ("from", 7, 20_000, 0), idle_ns=12_000) == (4_000, 3_000)
