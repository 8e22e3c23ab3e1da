# SPDX-License-Identifier: Apache-2.0
"""Where neither a probe nor the server's memory tells: samples of running threads, joined with the server's history of
statements."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing

from powerprof.database.clients.base import StatementError
from powerprof.database.clients.history import HistoryReader, enabled, missing_consumers
from powerprof.database.clients.performance import merged
from powerprof.energy.windows import WindowEnergy
from powerprof.errors import CapabilityError, Interrupted, PowerprofError
from powerprof.queries.reach import Reach, asked
from powerprof.queries.record import Measured
from powerprof.queries.remembered import Remembered, remembered_parts
from powerprof.sources.procfs import process_cpu_ns
from powerprof.text import Say
from powerprof.tracing.statements.ticks import SAMPLE_HZ, TickSampler
from powerprof.windows.sampling import WindowMeter

# Reading the history is a statement as others are: it takes at most a hundredth of the time.
_LEAST_S, _SHARE = 0.5, 100.0


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
        meter.open_window(duration_s)
        cpu_ns, started, spent_s, interrupted = process_cpu_ns(server.pid), time.monotonic(), 0.0, False
        sampler.start()
        try:
            interval_s = _LEAST_S
            while (left_s := started + duration_s - time.monotonic()) > 0:
                time.sleep(min(left_s, interval_s))
                if left_s > interval_s:
                    took_s = reader.read()
                    spent_s += took_s
                    interval_s = max(_LEAST_S, _SHARE * took_s)
        except Interrupted:
            interrupted = True
        sampler.stop()
        after_ns, window_s = process_cpu_ns(server.pid), time.monotonic() - started
        window = meter.close_window()
        history = reader.finish()
        ticks, lost = sampler.ticks()
    if cpu_ns is None or after_ns is None:
        raise PowerprofError(
            f"{server.label} ended within the window", "its error log says why; measure again when it is up"
        )
    known = merged(before, asked(server, running=False))
    cpu_s = (after_ns - cpu_ns) / 1e9
    found = remembered_parts(ticks, history, known, cpu_s, window_s)
    return Measured(
        method="history",
        parts=found.parts,
        known=known,
        window=energy.complete(window),
        window_s=window_s,
        process_cpu_s=cpu_s,
        cost_s=spent_s,
        bpf_s=None,
        seen_count=0,
        notes=_notes(found, lost),
        lost_count=lost,
        interrupted=interrupted,
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
