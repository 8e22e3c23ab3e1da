# SPDX-License-Identifier: Apache-2.0
"""Resolves the idle periods that are open at a window's edge: without BPF, without root.

The counters of a CPU move only when it leaves an idle state, so a sleeping CPU's are stale by as long as it
has slept: on a quiet guest plain differences over 6 s err by ±3 points of C0, where 0.5 is true. Here we move
ourselves onto each CPU in turn. It wakes for that, its counters are brought to account at the exit, and while
we run there no period can be open: time and counters read at that moment belong together. Each CPU so has an
exact window of its own. The exits that this causes are counted, from the CPU's usage just before.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from powerprof import paths
from powerprof.files import read_fields
from powerprof.sources.base import CpuReading, Snapshot
from powerprof.sources.clock import kernel_ns
from powerprof.sources.cpuidle import CpuidleReader, list_of, online_cpus, parse_cpu_list

_LIBC = ctypes.CDLL(None)


@contextmanager
def affinity_restored() -> Iterator[None]:
    """Whatever happens inside, this thread may run afterwards where it might before."""
    allowed = _allowed()
    try:
        yield
    finally:
        try:
            os.sched_setaffinity(0, allowed)
        except OSError:
            # All CPUs that we were bound to have gone offline meanwhile: any other is better than one of
            # them.
            os.sched_setaffinity(0, range(os.cpu_count() or 1))


def _allowed() -> set[int]:
    """The CPUs that this thread may run on, offline ones included: sched_getaffinity(2) leaves those out, and bound to
    the others alone it would not run on one that comes back.
    """
    path = Path("/proc/thread-self/status")
    listed = read_fields(path).get("Cpus_allowed_list", "")
    return set(parse_cpu_list(listed, path)) if listed else os.sched_getaffinity(0)


def move_to(cpu: int) -> bool:
    """Run on this CPU from now on; False where our cpuset (a container's, say) does not have it."""
    try:
        os.sched_setaffinity(0, {cpu})
    except OSError:
        return False
    return True


def _from_here(cpus: Sequence[int]) -> list[int]:
    """The same CPUs, beginning with the one that is awake because we are on it: it need not be woken again."""
    here = _LIBC.sched_getcpu()
    return [cpu for cpu in cpus if cpu >= here] + [cpu for cpu in cpus if cpu < here]


def _stateless(cpu: int) -> CpuReading:
    """The edge of a CPU without idle states: a moment at which we keep it awake."""
    resolved = move_to(cpu)
    return CpuReading(cpu, kernel_ns(), (), (), (), (), (), (), resolved=resolved)


def _read_awake(reader: CpuidleReader, cpu: int) -> CpuReading | None:
    """One CPU's counters, read while we keep it awake; unresolved where we may not run on it."""
    if cpu not in reader.cpus:
        return _stateless(cpu)
    before = reader.usage(cpu)
    resolved = move_to(cpu)
    reading = reader.read_cpu(cpu)
    if reading is None or before is None or not resolved:
        return reading
    forced = tuple(max(0, now - then) for now, then in zip(reading.usage, before, strict=True))
    return replace(reading, resolved=True, forced=forced)


def edge_snapshot(
    reader: CpuidleReader, *, every_cpu: bool = False, at_edge: Callable[[CpuReading], object] | None = None
) -> Snapshot:
    """All CPUs' counters with no idle period left open; about 0.1 ms a CPU that sleeps.

    `every_cpu`: the edges of CPUs without idle states as well; those readings have a time and no counters.
    `at_edge` is called with each CPU's reading while we keep it awake.
    CPUs that we may not run on are read as they are, which `notes` says. So are all of them where the trees
    have been moved: those CPUs are not ours to wake. Raises PowerprofError where a counter cannot be read.
    """
    if not paths.is_this_host():
        snapshot = reader.snapshot()
        note = "recorded counters: open idle periods are not resolved"
        return replace(snapshot, notes=(*snapshot.notes, note))
    readings: dict[int, CpuReading] = {}
    online = set(online_cpus(reader.root))
    with affinity_restored():
        for cpu in _from_here(sorted(online) if every_cpu else reader.cpus):
            reading = _read_awake(reader, cpu) if cpu in online else None
            if reading is not None:
                readings[cpu] = reading
                if at_edge is not None:
                    at_edge(reading)
    readings = dict(sorted(readings.items()))
    notes = list(reader.notes)
    unresolved = [cpu for cpu, reading in readings.items() if not reading.resolved]
    if unresolved:
        which = list_of(unresolved)
        notes.append(f"CPU {which} is outside our CPU set: its open idle periods are not resolved")
    return Snapshot(readings, tuple(notes))
