# SPDX-License-Identifier: Apache-2.0
"""Where neither a probe nor the server's memory tells: samples of running threads, joined with the server's history of
statements."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial

from powerprof.database.clients.base import StatementError
from powerprof.database.clients.history import HistoryReader, enabled, missing_consumers
from powerprof.database.clients.performance import merged
from powerprof.energy.windows import WindowEnergy
from powerprof.errors import CapabilityError
from powerprof.queries.reach import Reach, ServerTime, asked
from powerprof.queries.record import Measured
from powerprof.queries.remembered import Remembered, remembered_parts
from powerprof.sources.procfs import process_cpu_ns
from powerprof.text import Say
from powerprof.tracing.statements.ticks import SAMPLE_HZ, TickSampler
from powerprof.windows.runner import Part, pass_window
from powerprof.windows.sampling import WindowMeter

# Reading the history is a statement as others are: it takes at most a hundredth of the time.
_LEAST_S, _SHARE = 0.5, 100.0


class _History(Part):
    """What the server remembers, read so seldom that it costs little."""

    def __init__(self, reader: HistoryReader) -> None:
        self._reader, self._interval_s, self.spent_s = reader, _LEAST_S, 0.0

    @property
    def unread_at_most_s(self) -> float:
        return self._interval_s

    def read(self) -> None:
        self.spent_s += (took_s := self._reader.read())
        self._interval_s = max(_LEAST_S, _SHARE * took_s)


def remember(
    server: Reach, duration_s: float, energy: WindowEnergy, say: Say, consent: Callable[[str], None], *, enable: bool
) -> Measured:
    """One window. `enable`: consumers of performance_schema that are off may be switched on for it, after `consent`.

    Raises CapabilityError where the host or the server cannot, PowerprofError.
    """
    if server.login is None:
        raise CapabilityError(
            "the server does not let this user in by its socket", "name an account by --defaults-file"
        )
    with ExitStack() as stack:
        with server.connect() as connection:
            try:
                missing = missing_consumers(connection)
            except StatementError as error:
                raise CapabilityError(
                    f"performance_schema is closed to this account ({error.message})",
                    "another account by --defaults-file, or --method samples, which asks nothing",
                ) from error
        if missing and not enable:
            raise CapabilityError(
                f"performance_schema keeps no history of statements ({', '.join(missing)} off)",
                "--enable-consumers switches it on for the window and off again",
            )
        if missing:
            consent(
                f"{' and '.join(missing)} of performance_schema are going to be switched on, and off again afterwards"
            )
            stack.enter_context(enabled(server.login, missing))
        say("loading the sampler")
        sampler = stack.enter_context(TickSampler(server.pid))
        before = asked(server, running=False)
        reader = HistoryReader(server.login)
        stack.enter_context(closing(reader))
        meter = stack.enter_context(WindowMeter(meters=energy.meters))
        say(f"sampling {server.label} for {duration_s:g} s")
        remembered, used = _History(reader), ServerTime(server.label, partial(process_cpu_ns, server.pid))
        passed = pass_window(duration_s, *meter.parts, used, sampler, remembered)
        window = meter.collect(passed)
        history = reader.finish()
        ticks, lost = sampler.collect()
    cpu_s, window_s = used.collect()
    known = merged(before, asked(server, running=False))
    found = remembered_parts(ticks, history, known, cpu_s, window_s)
    return Measured(
        method="history",
        parts=found.parts,
        known=known,
        window=energy.complete(window),
        window_s=window_s,
        process_cpu_s=cpu_s,
        cost_s=remembered.spent_s,
        bpf_s=None,
        seen_count=0,
        notes=_notes(found, lost),
        lost_count=lost,
        interrupted=passed.interrupted is not None,
    )


def _notes(found: Remembered, lost: int) -> list[str]:
    whole = found.used_count + found.uncovered_count + lost
    covered = 100 * found.used_count / whole if whole else 0.0
    return [
        f"shares are those of {found.used_count:,} samples ({SAMPLE_HZ} a second and CPU) and have intervals; the "
        f"server's history told of {covered:.0f} % of all, the rest is taken to be like them",
        "samples tell neither wake-ups nor page faults of statements; calls are the server's own count, from before "
        "the window to just after it, latencies those of the statements that its history kept",
    ]
