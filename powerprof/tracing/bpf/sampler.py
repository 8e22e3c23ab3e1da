# SPDX-License-Identifier: Apache-2.0
"""Run a loaded program at software events of perf on every CPU: a clock with random moments, or page faults.

Formats: perf_event_open(2).
"""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from powerprof.measure.cpuidle import format_cpu_list, online_cpus
from powerprof.measure.perf_events import TYPE_SOFTWARE, open_counter, open_sampler, set_program
from powerprof.model.records import Note
from powerprof.system.closeable import Closeable
from powerprof.system.errors import PowerprofError, reason_of
from powerprof.tracing.bpf.permission import not_permitted_error

# PERF_COUNT_SW_… of include/uapi/linux/perf_event.h.
_CPU_CLOCK, _MINOR_FAULTS, _MAJOR_FAULTS = 0, 5, 6

# A single timer in step with work of the same rate meets that work always or never. So each CPU has several slower
# timers, with periods drawn within this part of their mean. In simulations of such work over 1 to 60 s the binomial
# interval contains the truth in 94 to 99 % of windows; with a single timer in 0 %.
_TIMERS, _SPREAD = 5, 0.4
# An interrupt shows as a gap in a loop that reads the clock.
_TRIED_HZ, _TRIED_S, _HOLE = 1_999, 0.05, 4
# A clock that is behind by more than this, and this part of the time, stood still: its CPU was offline.
_BEHIND_NS, _BEHIND = 1_000_000, 0.001


def draw_periods_ns(rate_hz: int) -> list[int]:
    """Return random periods in nanoseconds for timers that together fire `rate_hz` times a second."""
    periods = [random.SystemRandom().uniform(1 - _SPREAD, 1 + _SPREAD) for _ in range(_TIMERS)]
    unit_ns = 1e9 / rate_hz * sum(1 / period for period in periods)
    return [round(unit_ns * period) for period in periods]


class _Counter:
    """An event of perf with its count. A dead event keeps its last count."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor, self._count = descriptor, 0

    def read(self) -> int:
        data = os.read(self.descriptor, 8)
        self._count = int.from_bytes(data, "little") if data else self._count
        return self._count


class _CpuEvents:
    """The events of one CPU: a clock that counts its time online, and the events at which the program runs."""

    def __init__(self, cpu: int) -> None:
        self._clock = _Counter(open_counter(TYPE_SOFTWARE, _CPU_CLOCK, cpu))
        self.events: list[_Counter] = []
        self._clock_ns, self._at_ns = self._clock.read(), time.monotonic_ns()

    def advance(self) -> tuple[int, int]:
        """Return the nanoseconds of the CPU's clock since the last call, and those that the clock is behind."""
        before_ns = time.monotonic_ns()
        clock_ns = self._clock.read()
        moved_ns, passed_ns = clock_ns - self._clock_ns, before_ns - self._at_ns
        self._clock_ns, self._at_ns = clock_ns, time.monotonic_ns()
        return moved_ns, passed_ns - moved_ns if passed_ns * (1 - _BEHIND) - moved_ns > _BEHIND_NS else 0

    def counted(self) -> int:
        return sum(event.read() for event in self.events)

    def close(self) -> None:
        for event in (self._clock, *self.events):
            os.close(event.descriptor)


class Sampler(Closeable):
    """Software events of perf on every online CPU, at which a loaded program runs.

    The kernel ends a CPU's events when the CPU goes offline. `renew` opens them again; call it every `RENEW_S` seconds
    between `begin` and `end`. Then `sampled_ns` is the time of all CPUs with events. `missed_ns` is by CPU the time
    without events while the CPU was perhaps online.
    """

    RENEW_S = 0.2

    def __init__(self, program: int) -> None:
        self._program = program
        self._cpus: dict[int, _CpuEvents] = {}
        self._open_events: Callable[[int], Iterable[int]] = lambda cpu: ()
        self._closed_count = self._last_ns = self.sampled_ns = 0
        self.missed_ns: dict[int, int] = {}

    def open_clock(self, rate_hz: int) -> None:
        """Sample every CPU at random moments, `rate_hz` times a second. Raises CapabilityError, PowerprofError."""
        self._open_all(
            lambda cpu: (
                open_sampler(TYPE_SOFTWARE, _CPU_CLOCK, cpu, period_ns) for period_ns in draw_periods_ns(rate_hz)
            )
        )

    def measure_sample_ns(self) -> float | None:
        """Return the CPU time in ns of a sample that meets no target, or None if no sample was seen."""
        steps: list[int] = []
        try:
            self.open_clock(_TRIED_HZ)
            last = time.perf_counter_ns()
            end = last + int(_TRIED_S * 1e9)
            while last < end:
                steps.append((now := time.perf_counter_ns()) - last)
                last = now
        finally:
            self.close()
        steps.sort()
        usual = steps[len(steps) // 2]
        longest = [step - usual for step in steps[-int(_TRIED_HZ * _TRIED_S) :] if step > _HOLE * usual]
        return float(longest[len(longest) // 2]) if longest else None

    def open_faults(self) -> None:
        """Run the program at every page fault. Raises CapabilityError, PowerprofError."""
        self._open_all(
            lambda cpu: (open_sampler(TYPE_SOFTWARE, event, cpu, 1) for event in (_MINOR_FAULTS, _MAJOR_FAULTS))
        )

    def _open_all(self, open_events: Callable[[int], Iterable[int]]) -> None:
        self.close()
        self._open_events, self._closed_count = open_events, 0
        cpus = online_cpus()
        for cpu in cpus:
            try:
                self._open_cpu(cpu)
            except OSError as error:
                if error.errno == errno.ENODEV:
                    continue  # the CPU went offline
                self.close()
                if error.errno in (errno.EPERM, errno.EACCES):
                    raise not_permitted_error() from error
                raise PowerprofError(
                    f"cannot sample on CPU {cpu} ({reason_of(error)})", "end other profilers"
                ) from error
        self.begin()

    def _open_cpu(self, cpu: int) -> None:
        opened = _CpuEvents(cpu)
        try:
            for descriptor in self._open_events(cpu):
                opened.events.append(_Counter(descriptor))
                set_program(descriptor, self._program)
        except BaseException:
            opened.close()
            raise
        self._cpus[cpu] = opened

    def begin(self) -> None:
        """Begin a window: the times before it are dropped."""
        self._last_ns = time.monotonic_ns()
        self._advance()
        self.sampled_ns, self.missed_ns = 0, {}

    def renew(self) -> None:
        """Open the events of CPUs that came back, if this process may."""
        self._advance()
        for cpu in online_cpus():
            if cpu not in self._cpus:
                with suppress(OSError):
                    self._open_cpu(cpu)

    def end(self) -> None:
        """End the window and stop sampling."""
        self._advance()
        self.close()

    def _advance(self) -> None:
        """Add the time since the last call, and close the events of CPUs whose clock stood still."""
        online, now_ns = set(online_cpus()), time.monotonic_ns()
        for cpu in online - self._cpus.keys():
            self._miss(cpu, now_ns - self._last_ns)
        for cpu in list(self._cpus):
            moved_ns, behind_ns = self._cpus[cpu].advance()
            self.sampled_ns += moved_ns
            if behind_ns or cpu not in online:
                self._miss(cpu, behind_ns)
                self._closed_count += self._cpus[cpu].counted()
                self._cpus.pop(cpu).close()
        self._last_ns = now_ns

    def _miss(self, cpu: int, missed_ns: int) -> None:
        self.missed_ns[cpu] = self.missed_ns.get(cpu, 0) + missed_ns

    def counted(self) -> int:
        """Return the kernel's count of the events since they were opened."""
        return self._closed_count + sum(events.counted() for events in self._cpus.values())

    def notes(self) -> list[Note]:
        """Return the note on CPUs that went offline or came back within the window."""
        if not self.missed_ns:
            return []
        missed_s = sum(self.missed_ns.values()) / 1e9
        return [Note("cpus_not_sampled", {"cpus": format_cpu_list(list(self.missed_ns)), "seconds": missed_s})]

    def close(self) -> None:
        """Stop sampling."""
        while self._cpus:
            self._cpus.popitem()[1].close()
