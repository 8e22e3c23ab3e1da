# SPDX-License-Identifier: Apache-2.0
"""An ACPI table with idle states and frequencies for each CPU of QEMU's q35: for acpi_idle and acpi-cpufreq.

QEMU's own tables contain neither, and haltpoll needs KVM. Each idle state halts (HLT), because only that stops an
emulated CPU: in a guest the kernel returns at once from a state that it enters by reading a port (io_idle in
drivers/acpi/processor_idle.c), and QEMU's MWAIT has no substates. The kernel numbers states by their order, so several
states of type C1 are C1, C2 and C3 in cpuidle. The target residency is twice the latency. The kernel sets a frequency
by writing to a port without a device.
Encoding: ACPI specification 6.4, chapter 20 (AML), sections 5.2.6 (header), 8.4.1.1 (_CST), 8.4.5 (_PCT, _PSS).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

_SCOPE, _NAME, _PACKAGE, _BUFFER, _BYTE, _WORD = 0x10, 0x08, 0x12, 0x11, 0x0A, 0x0B
_SYSTEM_IO, _FIXED_HARDWARE = 1, 0x7F
# Latency in µs and power in mW of each state, shallowest first.
_STATES = ((2, 1000), (400, 500), (3000, 100))
# Frequency in MHz and power in mW, fastest first. The kernel writes the number of the frequency to the port.
_FREQUENCIES = ((2400, 2000), (1800, 1500), (1200, 1000))
_SWITCH_US = 10
_PORT = 0x7E0  # no device of q35 is there


def _sized(kind: int, contents: bytes) -> bytes:
    """Return an object with its PkgLength, which includes itself."""
    if len(contents) + 1 < 64:
        return bytes([kind, len(contents) + 1]) + contents
    total = len(contents) + 2
    return bytes([kind, 0x40 | total & 0xF, total >> 4]) + contents


def _package(elements: Iterable[bytes | int]) -> bytes:
    """Return a package of objects and numbers below 65,536."""
    parts = [struct.pack("<BH", _WORD, each) if isinstance(each, int) else each for each in elements]
    return _sized(_PACKAGE, bytes([len(parts)]) + b"".join(parts))


def _register(space: int, bits: int, address: int) -> bytes:
    """Return a resource template with one register."""
    data = struct.pack("<BHBBBBQ", 0x82, 12, space, bits, 0, 0, address) + bytes([0x79, 0])
    return _sized(_BUFFER, bytes([_BYTE, len(data)]) + data)


def _objects(states: int, *, frequencies: bool) -> bytes:
    halt, port = _register(_FIXED_HARDWARE, 0, 0), _register(_SYSTEM_IO, 8, _PORT)
    named = {b"_CST": [states, *(_package((halt, 1, *state)) for state in _STATES[:states])]}
    if frequencies:
        named[b"_PCT"] = [port, port]
        named[b"_PSS"] = [
            _package((*frequency, _SWITCH_US, _SWITCH_US, number, number))
            for number, frequency in enumerate(_FREQUENCIES)
        ]
    return b"".join(bytes([_NAME]) + name + _package(elements) for name, elements in named.items())


def power_table(cpus: int, states: int, *, frequencies: bool) -> bytes:
    """Return the SSDT. QEMU calls CPU n `\\_SB.CPUS.Cnnn`, in hexadecimal."""
    objects = _objects(states, frequencies=frequencies)
    body = b"".join(
        _sized(_SCOPE, b"\\" + bytes([0x2F, 3]) + b"_SB_CPUS" + f"C{cpu:03X}".encode() + objects) for cpu in range(cpus)
    )
    header = struct.pack("<4sIBB6s8sI4sI", b"SSDT", 36 + len(body), 2, 0, b"PWPROF", b"IDLESTAT", 1, b"PWPF", 1)
    table = bytearray(header + body)
    table[9] = -sum(table) & 0xFF
    return bytes(table)
