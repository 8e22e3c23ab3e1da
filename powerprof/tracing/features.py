# SPDX-License-Identifier: Apache-2.0
"""What this kernel's BPF can do, by trial: a map of the kind is made, a program that calls the helper is loaded.

Distributions carry features back to older kernels, so no version is asked. Numbers are of the kernel's interface
(include/uapi/linux/bpf.h), which never change; the versions are those of the first Linux that had the feature.
"""

from __future__ import annotations

import ctypes
import os
import struct
from dataclasses import dataclass
from functools import lru_cache

from powerprof.errors import CapabilityError

_SYS_BPF = {"x86_64": 321, "aarch64": 280, "ppc64le": 361, "s390x": 351, "riscv64": 280}
_MAP_CREATE, _PROG_LOAD = 0, 5
_KPROBE, _RAW_TRACEPOINT = 2, 17
_ATTR_BYTES = 120
_LOG_BYTES = 4096
# What verifiers say of a helper that they do not have, or not for this kind of program.
_NO_SUCH_HELPER = (b"invalid func ", b"unknown func ", b"program of this type cannot use helper ")


@dataclass(frozen=True)
class Feature:
    """One feature: `number` of a map type or helper, the first Linux that had it, and what it is needed for.

    `program` is the type of program that a helper is tried in: some are for some types only.
    """

    name: str
    kind: str
    number: int
    since: str
    purpose: str
    program: int = _RAW_TRACEPOINT


RING_BUFFER = Feature("BPF ring buffer", "map", 27, "5.8", "tracing")
TASK_REGISTERS = Feature("bpf_task_pt_regs", "helper", 175, "5.15", "user registers by the kernel's own helper")
CURRENT_TASK = Feature("bpf_get_current_task_btf", "helper", 158, "5.11", "--on-cpu")
ATTACH_COOKIE = Feature("bpf_get_attach_cookie", "helper", 174, "5.15", "--functions", _KPROBE)
COARSE_CLOCK = Feature("bpf_ktime_get_coarse_ns", "helper", 160, "5.11", "the time of the last tick")


class NotPermittedError(Exception):
    """This process may not try."""


def _bpf(command: int, attributes: bytes) -> int:
    number = _SYS_BPF.get(os.uname().machine)
    if number is None:
        raise OSError(38, "bpf(2) is not known on this machine")
    buffer = ctypes.create_string_buffer(attributes.ljust(_ATTR_BYTES, b"\0"), _ATTR_BYTES)
    libc = ctypes.CDLL(None, use_errno=True)
    result = int(libc.syscall(ctypes.c_long(number), ctypes.c_int(command), buffer, ctypes.c_uint(_ATTR_BYTES)))
    if result < 0:
        code = ctypes.get_errno()
        if code == 1:
            raise NotPermittedError
        raise OSError(code, os.strerror(code))
    return result


def _has_map(number: int) -> bool:
    try:
        # type, key size, value size, entries: a ring buffer of one page has neither keys nor values.
        os.close(_bpf(_MAP_CREATE, struct.pack("=4I", number, 0, 0, os.sysconf("SC_PAGESIZE"))))
    except OSError:
        return False
    return True


def _has_helper(number: int, kind: int) -> bool:
    """A program that calls it without arguments: refused in any case, but only a missing helper for that reason."""
    program = struct.pack("=BBhi", 0x85, 0, 0, number) + struct.pack("=BBhi", 0x95, 0, 0, 0)
    code, log = ctypes.create_string_buffer(program), ctypes.create_string_buffer(_LOG_BYTES)
    licence = ctypes.create_string_buffer(b"GPL")
    attributes = struct.pack(
        "=2I2Q2IQ", kind, 2, ctypes.addressof(code), ctypes.addressof(licence), 1, _LOG_BYTES, ctypes.addressof(log)
    )
    try:
        os.close(_bpf(_PROG_LOAD, attributes))
    except OSError:
        return not any(said in log.raw for said in _NO_SUCH_HELPER)
    return True


@lru_cache(maxsize=64)
def has(feature: Feature) -> bool | None:
    """Whether this kernel has it; None where this process may not try."""
    try:
        return _has_map(feature.number) if feature.kind == "map" else _has_helper(feature.number, feature.program)
    except NotPermittedError:
        return None


def need(feature: Feature, purpose: str = "") -> None:
    """Raises CapabilityError, which names the kernel and the feature, where it is not there.

    `purpose`: what needs it here, where that is not its usual purpose.
    """
    if has(feature) is False:
        raise CapabilityError(
            f"this kernel ({os.uname().release}) has no {feature.name}, which {purpose or feature.purpose} needs",
            f"Linux {feature.since} or newer",
        )
