# SPDX-License-Identifier: Apache-2.0
"""Call bpf(2): maps, programs and their attachment, without a library or a compiler in this process.

Numbers and layouts are those of the kernel's interface (include/uapi/linux/bpf.h, union bpf_attr), which never change.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from pathlib import Path

_NUMBER = {"x86_64": 321, "aarch64": 280, "ppc64le": 361, "s390x": 351, "riscv64": 280}
_MAP_CREATE, _LOOKUP, _UPDATE, _PROG_LOAD, _RUN_ONCE, _FREEZE = 0, 1, 2, 5, 10, 22
_RAW_TRACEPOINT_OPEN, _LOOKUP_BATCH, _DELETE_BATCH, _LINK_CREATE, _ENABLE_STATS = 17, 24, 27, 28, 32
_ATTR_BYTES = 120
# Statistics, and messages without the instructions: the log of those of a loop is larger than any buffer (ENOSPC).
_LOG_MESSAGES, _LOG_BYTES = 4, 1 << 20
# Most tables are small. Allocating and scanning memory for a large batch takes longer than reading them.
_FIRST_BATCH, _BATCH = 256, 4096

MAP_HASH, MAP_ARRAY, MAP_PERCPU_ARRAY, MAP_LRU_HASH, MAP_RING_BUFFER = 1, 2, 6, 9, 27
PROGRAM_KPROBE, PROGRAM_PERF_EVENT, PROGRAM_RAW_TRACEPOINT, PROGRAM_TRACING, PROGRAM_SYSCALL = 2, 7, 17, 26, 31
SLEEPABLE = 1 << 4
ATTACH_TYPED_TRACEPOINT, ATTACH_PERF_EVENT, ATTACH_UPROBE_MULTI = 23, 41, 48

_LIBC = ctypes.CDLL(None, use_errno=True)


class RefusedError(OSError):
    """A program that the kernel refused; `log` is the output of its verifier."""

    def __init__(self, code: int, log: str) -> None:
        super().__init__(code, os.strerror(code))
        self.log = log


def call_bpf(command: int, attributes: bytes | bytearray) -> int:
    """Call bpf(2). Return its result. Raises OSError."""
    number = _NUMBER.get(os.uname().machine)
    if number is None:
        raise OSError(errno.ENOSYS, "bpf(2) is not known on this machine")
    buffer = (ctypes.c_char * _ATTR_BYTES).from_buffer_copy(bytes(attributes).ljust(_ATTR_BYTES, b"\0"))
    result = int(_LIBC.syscall(ctypes.c_long(number), ctypes.c_int(command), buffer, ctypes.c_uint(_ATTR_BYTES)))
    if isinstance(attributes, bytearray):
        attributes[:] = buffer.raw[: len(attributes)]
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def create_map(name: str, kind: int, key_bytes: int, value_bytes: int, entries: int, flags: int) -> int:
    """Create a map and return its descriptor. Raises OSError."""
    shown = name.encode()[:15]
    return call_bpf(_MAP_CREATE, struct.pack("=7I16s", kind, key_bytes, value_bytes, entries, flags, 0, 0, shown))


def load_program(name: str, kind: int, code: bytes, *, attach_type: int = 0, attach_to: int = 0, flags: int = 0) -> int:
    """Load a program and return its descriptor.

    `attach_to`: a BTF type id. Raises RefusedError with the verifier's log.
    """
    shown = name.encode()[-15:]
    instructions, terms = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(b"GPL")

    def load(log: ctypes.Array[ctypes.c_char] | None) -> int:
        attributes = struct.pack(
            "=2I2Q2IQ2I16s2I36xI",
            kind,
            len(code) // 8,
            ctypes.addressof(instructions),
            ctypes.addressof(terms),
            _LOG_MESSAGES if log is not None else 0,
            len(log) if log is not None else 0,
            ctypes.addressof(log) if log is not None else 0,
            0,
            flags,
            shown,
            0,
            attach_type,
            attach_to,
        )
        return call_bpf(_PROG_LOAD, attributes)

    try:
        return load(None)
    except OSError:
        # The verifier writes its log only on request, because writing takes time.
        buffer = ctypes.create_string_buffer(_LOG_BYTES)
        try:
            return load(buffer)
        except OSError as error:
            raise RefusedError(error.errno or 0, buffer.value.decode("utf-8", "replace")) from error


def run_program(program: int, *arguments: int) -> int:
    """Run a raw tracepoint's or system call's program with these arguments; return the low 32 bits of its result.

    BPF_PROG_TEST_RUN, Linux 5.10. Raises OSError.
    """
    given = ctypes.create_string_buffer(struct.pack(f"={len(arguments)}Q", *arguments), 8 * len(arguments))
    attributes = bytearray(struct.pack("=4I2Q4I2Q3I4x", program, *(0,) * 9, ctypes.addressof(given), 0, 0, 0, 0))
    struct.pack_into("=I", attributes, 40, len(given))
    call_bpf(_RUN_ONCE, attributes)
    return int(struct.unpack_from("=I", attributes, 4)[0])


def freeze_map(descriptor: int) -> None:
    """Make a map read-only."""
    call_bpf(_FREEZE, struct.pack("=I", descriptor))


def open_raw_tracepoint(name: str, program: int) -> int:
    """Attach a program and return a descriptor; closing it detaches.

    A typed program knows its tracepoint and has no name.
    """
    text = ctypes.create_string_buffer(name.encode())
    return call_bpf(_RAW_TRACEPOINT_OPEN, struct.pack("=QI", ctypes.addressof(text) if name else 0, program))


def create_link(program: int, target: int, attach_type: int, rest: bytes) -> int:
    """Attach by a link and return its descriptor; closing it detaches. `rest`: further attributes (BPF_LINK_CREATE)."""
    return call_bpf(_LINK_CREATE, struct.pack("=4I", program, target, attach_type, 0) + rest)


def enable_run_time_stats() -> int:
    """Let the kernel sum the time in BPF programs while the returned descriptor is open (Linux 5.8)."""
    return call_bpf(_ENABLE_STATS, struct.pack("=I", 0))


def read_run_time(program: int) -> tuple[int, int] | None:
    """Return the kernel's summed time of a program in ns and its number of runs, or None if they are not reported."""
    words = Path(f"/proc/self/fdinfo/{program}").read_text().split()
    if "run_time_ns:" not in words:
        return None
    spent_ns, count = (int(words[words.index(name) + 1]) for name in ("run_time_ns:", "run_cnt:"))
    return spent_ns, count


def _pack_element(descriptor: int, key: bytes, value: int) -> tuple[bytes, ctypes.Array[ctypes.c_char]]:
    held = ctypes.create_string_buffer(key, len(key))
    return struct.pack("=IIQQQ", descriptor, 0, ctypes.addressof(held), value, 0), held


def read_entry(descriptor: int, key: bytes, value_bytes: int) -> bytes:
    """Return the value of an entry. Raises OSError (ENOENT)."""
    value = ctypes.create_string_buffer(value_bytes)
    attributes, _held = _pack_element(descriptor, key, ctypes.addressof(value))
    call_bpf(_LOOKUP, attributes)
    return value.raw


def write_entry(descriptor: int, key: bytes, value: bytes) -> None:
    """Set an entry. Raises OSError (E2BIG if the map is full)."""
    data = ctypes.create_string_buffer(value, len(value))
    attributes, _held = _pack_element(descriptor, key, ctypes.addressof(data))
    call_bpf(_UPDATE, attributes)


def delete_entries(descriptor: int, keys: bytes, key_bytes: int) -> None:
    """Delete entries in one call (BPF_MAP_DELETE_BATCH, Linux 5.6). Missing entries are skipped."""
    held, place = ctypes.create_string_buffer(keys, len(keys)), 0
    while place < len(keys):
        left = (len(keys) - place) // key_bytes
        attributes = bytearray(struct.pack("=4Q2I2Q", 0, 0, ctypes.addressof(held) + place, 0, left, descriptor, 0, 0))
        try:
            call_bpf(_DELETE_BATCH, attributes)
            return
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise
        # The call stopped at a missing key.
        (count,) = struct.unpack_from("=I", attributes, 32)
        place += (count + 1) * key_bytes


def read_entries(descriptor: int, key_bytes: int, value_bytes: int, entries: int) -> tuple[bytes, bytes]:
    """Return all keys and values of a hash or array with at most `entries` entries.

    Reads some thousand entries a call (BPF_MAP_LOOKUP_BATCH, Linux 5.6). Raises OSError.
    """
    batch = 0
    found_keys, found_values = bytearray(), bytearray()
    # The start of the next batch: the number of a bucket, in place of a key.
    place, begun = ctypes.create_string_buffer(max(key_bytes, 8)), False
    while True:
        if batch < min(_BATCH, entries):
            batch = min(_FIRST_BATCH if not begun else _BATCH, entries)
            keys, values = (ctypes.create_string_buffer(batch * size) for size in (key_bytes, value_bytes))
        attributes = bytearray(
            struct.pack(
                "=4Q2I2Q",
                ctypes.addressof(place) if begun else 0,
                ctypes.addressof(place),
                ctypes.addressof(keys),
                ctypes.addressof(values),
                batch,
                descriptor,
                0,
                0,
            )
        )
        try:
            call_bpf(_LOOKUP_BATCH, attributes)
            is_end = False
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise
            is_end = True
        (count,) = struct.unpack_from("=I", attributes, 32)
        found_keys += ctypes.string_at(keys, count * key_bytes)
        found_values += ctypes.string_at(values, count * value_bytes)
        if is_end or not count:
            return bytes(found_keys), bytes(found_values)
        begun = True


# Eight bytes: operation, registers, offset, number (kernel: instruction-set.rst). The lower four bits of the registers
# are the destination, the upper four the source.
INSTRUCTION = struct.Struct("=BBhi")
