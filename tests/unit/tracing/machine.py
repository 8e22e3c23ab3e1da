# SPDX-License-Identifier: Apache-2.0
"""Feeds recorded events to the kernel's own state machine, compiled natively."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from powerprof.system import paths
from powerprof.tracing.bpf.shared_numbers import WakeEvidence
from powerprof.tracing.idle_data import IDLE_EXIT

HERE = Path(__file__).parent
FUNCTIONS = {"tick_nohz_handler": 1, "hrtimer_wakeup": 2, "process_timeout": 3, "timerfd_tmrproc": 4}
_EVIDENCE = {
    "local_timer_entry": WakeEvidence.LOCAL_TIMER,
    "reschedule_entry": WakeEvidence.RESCHEDULE,
    "call_function_single_entry": WakeEvidence.CALL_FUNCTION,
}
Event = tuple[int, int, str, tuple[str, ...]]  # CPU, ns, event, arguments


def build(folder: Path) -> ctypes.CDLL:
    """Compile probes/bpf/idle_exit.h with the wrappers of native.c."""
    library = folder / "idle_exit.so"
    header = paths.data_dir("probes") / "bpf"
    flags = ("-O1", "-Wall", "-Wno-unused-function", "-shared", "-fPIC", f"-I{header}")
    subprocess.run(["gcc", *flags, "-o", library, HERE / "native.c"], check=True)
    found = ctypes.CDLL(str(library))
    parts = ("state_bytes", "record_bytes", "waking_bytes", "key_bytes", "sum_bytes", "total_bytes")
    for name in (*parts, "phase_offset", "gap_offset"):
        getattr(found, name).restype = ctypes.c_ulong
    found.chosen.restype = ctypes.c_uint32
    return found


def recorded(path: Path) -> list[Event]:
    """`CPU ns event arguments…` lines."""
    events = []
    for line in path.read_text().splitlines():
        cpu, at, name, *arguments = line.split()
        events.append((int(cpu), int(at) + 10**9, name, tuple(arguments)))
    return events


def function_address(name: str) -> int:
    return 0x1000 + FUNCTIONS.setdefault(name, len(FUNCTIONS) + 1)


class Machine:
    """All CPUs of one recording."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._c = library
        self._cpus: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self._wakings: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self._records: list[bytes] = []

    def run(self, events: Iterable[Event]) -> np.ndarray:
        """The records of all whole idle periods, in order of their idle exits."""
        for cpu, at, name, arguments in events:
            self._feed(cpu, at, name, arguments)
        records = np.frombuffer(b"".join(self._records), dtype=IDLE_EXIT)
        return records[np.argsort(records["exit_ns"], kind="stable")]

    def _feed(self, cpu: int, at: int, name: str, arguments: tuple[str, ...]) -> None:
        state = self._cpus.setdefault(cpu, ctypes.create_string_buffer(self._c.state_bytes()))
        now = ctypes.c_uint64(at)
        c = self._c
        if name == "idle":
            number = int(arguments[0])
            if number == 2**32 - 1:
                c.leave(state, now)
                return
            out = ctypes.create_string_buffer(c.record_bytes())
            if c.enter(state, now, cpu, number, out):
                self._records.append(out.raw)
        elif name in _EVIDENCE:
            c.evidence(state, _EVIDENCE[name], 0)
        elif name == "ipi_entry":
            c.refine(state, WakeEvidence.RESCHEDULE, 0)
        elif name == "wake_idle_without_ipi":
            target = self._cpus.setdefault(int(arguments[0]), ctypes.create_string_buffer(c.state_bytes()))
            c.evidence(target, WakeEvidence.NO_IPI, 0)
        elif name == "irq_handler_entry":
            c.hardirq(state, int(arguments[0]))
        elif name == "irq_handler_exit":
            c.hardirq_end(state, int(arguments[0]) if arguments else 1)
        elif name == "softirq_raise":
            c.raise_softirq(state, int(arguments[0]), int(arguments[1] == "in_interrupt"))
        elif name == "softirq_entry":
            c.softirq(state, int(arguments[0]))
        elif name == "softirq_exit":
            c.softirq_end(state)
        elif name in ("hrtimer_expire_entry", "timer_expire_entry"):
            tick = arguments[0] == "tick_nohz_handler"
            function = ctypes.c_uint64(function_address(arguments[0]))
            c.timer(state, function, int(tick), int(name == "timer_expire_entry"))
        elif name in ("hrtimer_expire_exit", "timer_expire_exit"):
            c.timer_end(state)
        elif name == "sched_waking":
            waking = ctypes.create_string_buffer(c.waking_bytes())
            c.waking(state, waking, cpu, int(arguments[0]), int(arguments[1]))
            # How often it had been switched out, and whether it still was on its CPU: 0 where a recording does not say.
            switches, on_cpu = (*map(int, arguments[2:]), 0, 0)[:2]
            c.switched_out(waking, ctypes.c_uint64(switches), on_cpu)
            self._wakings[int(arguments[0])] = waking
        elif name == "sched_switch" and arguments[0] == "0":
            switches = ctypes.c_uint64(int((*arguments, 0)[2]))
            c.switch_to(state, now, int(arguments[1]), switches, self._wakings.get(int(arguments[1])))
        elif name != "sched_switch":
            raise AssertionError(name)


def with_handlers_after_exit(events: list[Event]) -> list[Event]:
    """The same events as a machine orders them whose idle (MWAIT) is entered with interrupts off: each exit
    comes first, what its handlers did comes right after it."""
    result: list[Event] = []
    held: dict[int, list[Event]] = {}
    for event in events:
        cpu, at, name, arguments = event
        if name == "idle" and int(arguments[0]) != 2**32 - 1:
            result.append(event)
            held[cpu] = []
        elif name == "idle":
            handlers = held.pop(cpu, [])
            first = handlers[0][1] if handlers else at
            result.append((cpu, first, name, arguments))
            result += [(c, t + 1, n, a) for c, t, n, a in handlers]
        elif cpu in held:
            held[cpu].append(event)
        else:
            result.append(event)
    return sorted(result, key=lambda event: event[1])
