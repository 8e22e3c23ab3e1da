# SPDX-License-Identifier: Apache-2.0
"""The way by samples: which statement each thread is at, by its text in the server's memory."""

from __future__ import annotations

from powerprof.closeable import Closeable
from powerprof.database.clients.performance import merged
from powerprof.energy.windows import WindowEnergy
from powerprof.queries import notes
from powerprof.queries.reach import Reach, ServerTime, asked
from powerprof.queries.record import Measured
from powerprof.queries.sampled import moment_parts
from powerprof.tracing.captures.statements import TextSeen
from powerprof.tracing.statements.members import Members
from powerprof.tracing.statements.moments import MomentSampler
from powerprof.windows.runner import pass_window
from powerprof.windows.sampling import WindowMeter


class Samples(Closeable):
    """The sampler of one server; a context manager that removes it. Raises CapabilityError, PowerprofError."""

    def __init__(self, server: Reach) -> None:
        self._server = server
        self._sampler = MomentSampler(server.pid, server.family)

    def close(self) -> None:
        self._sampler.close()

    def window(self, duration_s: float, energy: WindowEnergy) -> tuple[Measured, list[TextSeen]]:
        """One window, and the texts as clients sent them. The server is asked before and after it, never within.

        Raises PowerprofError where the server ended.
        """
        server, sampler = self._server, self._sampler
        members = Members(server.pid, is_family=server.family == "postgresql")
        before = asked(server, running=False)
        used = ServerTime(server.label, members.cpu_ns)
        with WindowMeter(meters=energy.meters) as meter:
            passed = pass_window(duration_s, used, sampler, *meter.parts)
            window = meter.collect(passed)
        cpu_s, window_s = used.collect()
        moments = sampler.collect()
        known = merged(before, asked(server, running=False))
        parts, count = moment_parts(moments, known, cpu_s, window_s)
        measured = Measured(
            method="samples",
            parts=parts,
            known=known,
            window=energy.complete(window),
            window_s=window_s,
            process_cpu_s=cpu_s,
            cost_s=moments.cost_s,
            bpf_s=moments.bpf_s,
            seen_count=0,
            notes=notes.of_samples(moments, count, known, server),
            lost_count=moments.lost_count,
            unreadable_count=moments.unreadable_count,
            cut_count=moments.cut_count,
            interrupted=passed.interrupted is not None,
        )
        return measured, moments.texts
