# SPDX-License-Identifier: Apache-2.0
"""An ACPI table that gives each CPU of QEMU's q35 an idle state, so that the kernel has a cpuidle driver (acpi_idle).

QEMU's own tables name none, and haltpoll wants a hypervisor that says KVM. The state is C1 by HLT: what an emulated CPU
can do. Encoding: ACPI specification 6.4, chapter 20 (AML), sections 5.2.6 (header) and 8.4.1.1 (_CST).
"""

from __future__ import annotations

import struct

_SCOPE, _NAME, _PACKAGE, _BUFFER, _BYTE, _WORD, _ONE = 0x10, 0x08, 0x12, 0x11, 0x0A, 0x0B, 0x01
_FIXED_HARDWARE = 0x7F
_LATENCY_US, _POWER_MW = 2, 1000


def _sized(kind: int, contents: bytes) -> bytes:
    """An object with a PkgLength, which counts itself."""
    if len(contents) + 1 < 64:
        return bytes([kind, len(contents) + 1]) + contents
    total = len(contents) + 2
    return bytes([kind, 0x40 | total & 0xF, total >> 4]) + contents


def _idle_states() -> bytes:
    register = struct.pack("<BHBBBBQ", 0x82, 12, _FIXED_HARDWARE, 0, 0, 0, 0) + bytes([0x79, 0])
    state = (
        bytes([4])
        + _sized(_BUFFER, bytes([_BYTE, len(register)]) + register)
        + bytes([_ONE, _BYTE, _LATENCY_US, _WORD])
        + struct.pack("<H", _POWER_MW)
    )
    return bytes([_NAME]) + b"_CST" + _sized(_PACKAGE, bytes([2, _ONE]) + _sized(_PACKAGE, state))


def idle_table(cpus: int) -> bytes:
    """The SSDT; QEMU calls CPU n `\\_SB.CPUS.Cnnn`, in hexadecimal."""
    states = _idle_states()
    body = b"".join(
        _sized(_SCOPE, b"\\" + bytes([0x2F, 3]) + b"_SB_CPUS" + f"C{cpu:03X}".encode() + states) for cpu in range(cpus)
    )
    header = struct.pack("<4sIBB6s8sI4sI", b"SSDT", 36 + len(body), 2, 0, b"PWPROF", b"IDLESTAT", 1, b"PWPF", 1)
    table = bytearray(header + body)
    table[9] = -sum(table) & 0xFF
    return bytes(table)
