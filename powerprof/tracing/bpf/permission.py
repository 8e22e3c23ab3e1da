# SPDX-License-Identifier: Apache-2.0
"""Find out whether this process may load BPF programs, by creating a map."""

from __future__ import annotations

import os
from functools import lru_cache

from powerprof.system.errors import CapabilityError
from powerprof.tracing.bpf import syscalls


def not_permitted_error() -> CapabilityError:
    """Return the error for a user who may not load programs."""
    hint = "run as root"
    if os.geteuid() == 0:
        hint = (
            "in a container: capabilities BPF, PERFMON and SYS_PTRACE, and a seccomp profile that allows bpf and "
            "perf_event_open; else see /sys/kernel/security/lockdown"
        )
    return CapabilityError("cannot load BPF programs: not permitted", hint)


@lru_cache(maxsize=8)
def has_map_type(number: int) -> bool | None:
    """Return whether this kernel has maps of a type without keys and values, or None if this process may not try."""
    try:
        os.close(syscalls.create_map("trial", number, 0, 0, os.sysconf("SC_PAGESIZE"), 0))
    except PermissionError:
        return None
    except OSError:
        return False
    return True


def may_load_programs() -> bool:
    """Return whether this process may load programs. Otherwise nothing is known about the kernel's features."""
    return has_map_type(syscalls.MAP_RING_BUFFER) is not None
