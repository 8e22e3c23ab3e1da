# SPDX-License-Identifier: Apache-2.0
"""The capabilities of a host: can it measure, trace and meter, and which programs are installed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from powerprof.host.bpf_probes import probe_bcc, probe_headers, probe_stacks, probe_tracing
from powerprof.host.capabilities import Capability, missing
from powerprof.host.kernel_probes import probe_btf, probe_deep_idle, probe_privileges, probe_residency, probe_tracefs
from powerprof.host.meter_probes import PROBED, judge_energy, probe_meter
from powerprof.host.program_probes import probe_dtrace, probe_powertop, probe_program, probe_server, probe_turbostat
from powerprof.system.errors import PowerprofError, reason_of


def _try(name: str, probe: Callable[[], Capability]) -> Capability:
    """Return the result of the probe, also if it fails."""
    try:
        return probe()
    except PowerprofError as error:
        return missing(name, error.message, error.hint)
    except OSError as error:
        return missing(name, f"cannot look for it: {reason_of(error)} ({error.filename})")


def survey_host() -> list[Capability]:
    """Return the capabilities of this host. Takes about a second, mostly for a BPF program; changes nothing."""
    meters = [_try(name, partial(probe_meter, name)) for name in PROBED]
    return [
        _try("residency", probe_residency),
        _try("deep_idle", probe_deep_idle),
        _try("tracing", probe_tracing),
        _try("stacks", probe_stacks),
        _try("energy", lambda: judge_energy(meters)),
        _try("mariadbd", probe_server),
        _try(
            "sysbench", lambda: probe_program("sysbench", "not installed; most loads of run, compare and sweep need it")
        ),
        _try("privileges", probe_privileges),
        _try("bcc", probe_bcc),
        _try("headers", probe_headers),
        _try("btf", probe_btf),
        _try("tracefs", probe_tracefs),
        *meters,
        _try("powertop", probe_powertop),
        _try("turbostat", probe_turbostat),
        _try("bpftrace", lambda: probe_program("bpftrace", "optional: not installed")),
        _try("dtrace", probe_dtrace),
    ]
