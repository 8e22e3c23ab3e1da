# SPDX-License-Identifier: Apache-2.0
"""The way by samples: which statement each thread is at, by its text in the server's memory."""

from __future__ import annotations

from powerprof.closeable import Closeable
from powerprof.database.clients.performance import Known, merged
from powerprof.energy.windows import WindowEnergy
from powerprof.queries import notes
from powerprof.queries.probing import Taken
from powerprof.queries.reach import Reach, ServerTime, asked
from powerprof.queries.record import MeasuredStatements
from powerprof.queries.sampled import moment_parts
from powerprof.records import Window
from powerprof.tracing.statements.members import ServerProcesses
from powerprof.tracing.statements.moments import MomentSampler
from powerprof.windows.runner import Part, pass_window
from powerprof.windows.sampling import WindowMeter


class Samples(Closeable):
    """The sampler of one server; a context manager that removes it. Raises CapabilityError, PowerprofError."""

    def __init__(self, server: Reach) -> None:
        self._server = server
        self._sampler = MomentSampler(server.pid, server.family)
        members = ServerProcesses(server.pid, is_family=server.family == "postgresql")
        self._used = ServerTime(server.label, members.cpu_ns)
        self._known = Known()

    def close(self) -> None:
        self._sampler.close()

    @property
    def parts(self) -> tuple[Part, ...]:
        """What observes a window, for a runner."""
        return self._used, self._sampler

    def ready(self) -> None:
        """A window is near: the server is asked."""
        self._known = asked(self._server, running=False)

    def window(self, duration_s: float, energy: WindowEnergy) -> Taken:
        """One window. The server is asked before and after it, never within.

        Raises PowerprofError where the server ended.
        """
        self.ready()
        with WindowMeter(meters=energy.meters) as meter:
            passed = pass_window(duration_s, *self.parts, *meter.parts)
            window = meter.collect(passed)
        return self.taken(energy.complete(window), interrupted=passed.interrupted is not None)

    def taken(self, window: Window, *, interrupted: bool = False) -> Taken:
        """What was sampled in a window that has ended, with the texts as clients sent them; `window` is the host in it,
        with its energy. Raises PowerprofError where the server ended."""
        server = self._server
        cpu_s, window_s = self._used.collect()
        moments = self._sampler.collect()
        known = merged(self._known, asked(server, running=False))
        parts, count = moment_parts(moments, known, cpu_s, window_s)
        measured = MeasuredStatements(
            method="samples",
            parts=parts,
            known=known,
            window=window,
            window_s=window_s,
            process_cpu_s=cpu_s,
            cost_s=moments.cost_s,
            bpf_s=moments.bpf_s,
            seen_count=0,
            notes=notes.of_samples(moments, count, known, server),
            lost_count=moments.lost_count,
            unreadable_count=moments.unreadable_count,
            cut_count=moments.cut_count,
            interrupted=interrupted,
        )
        return Taken(measured, moments.texts)
