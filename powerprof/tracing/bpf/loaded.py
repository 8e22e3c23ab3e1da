# SPDX-License-Identifier: Apache-2.0
"""Load a compiled program into the kernel, attach it, and read and write its maps, without bcc.

The beginning of a function's name is its purpose. `raw_tracepoint__NAME` is attached to that tracepoint at once, and so
is `btf_tracepoint__NAME`, whose arguments the verifier knows by their types. `sample__NAME` runs at overflows of perf
events and `uprobe__NAME` at places in programs (`uprobes.py`). `called__NAME` runs when a raw tracepoint's program
calls it through a table of programs (`put_programs`), or once (`run`), and so does `sleepable__NAME`.
"""

from __future__ import annotations

import errno
import mmap
import os
import resource
import select
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from powerprof.system.closeable import Closeable
from powerprof.system.errors import CapabilityError, PowerprofError, reason_of
from powerprof.system.next_steps import command_line
from powerprof.tracing.bpf import carried, compiled_cache, objects, syscalls
from powerprof.tracing.bpf.btf import Btf, read_kernel_btf
from powerprof.tracing.bpf.definitions import count_possible_cpus
from powerprof.tracing.bpf.objects import Compiled, MapPlan, ProgramPlan, link_maps
from powerprof.tracing.bpf.permission import may_load_programs, not_permitted_error

_PAGE = mmap.PAGESIZE
_HEADER, _LENGTH_BYTES = 8, 4
_BUSY, _DISCARD = 1 << 31, 1 << 30
# BPF_F_MMAPABLE, include/uapi/linux/bpf.h. The kernel rounds values of mapped arrays up to words.
_MAPPABLE, _WORD = 1 << 10, 8


class RingBuffer:
    """A BPF ring buffer in shared memory; `on_bytes` gets each record (Documentation/bpf/ringbuf.rst in the kernel).

    One page holds the consumer's position, which powerprof writes, one the producer's; the data follow. Positions only
    grow. The kernel maps the data twice so that no record is cut; one mapping is enough here and needs half the memory.
    Positions and lengths are read and written as whole words, because struct copies byte by byte and could return a
    position that never existed.
    """

    def __init__(self, descriptor: int, size_bytes: int, on_bytes: Callable[[bytes], object]) -> None:
        self._on_bytes, self._mask = on_bytes, size_bytes - 1
        self._consumer = mmap.mmap(descriptor, _PAGE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self._shared = mmap.mmap(descriptor, _PAGE + size_bytes, mmap.MAP_SHARED, mmap.PROT_READ, offset=_PAGE)
        self._consumed, self._produced = memoryview(self._consumer).cast("Q"), memoryview(self._shared).cast("Q")
        self._lengths = memoryview(self._shared).cast("I")

    def close(self) -> None:
        """Unmap the buffer."""
        for view in (self._consumed, self._produced, self._lengths):
            view.release()
        self._consumer.close()
        self._shared.close()

    def consume(self) -> None:
        """Deliver the present records, without waiting."""
        position, end = self._consumed[0], self._produced[0]
        while position < end:
            at = _PAGE + (position & self._mask)
            # The kernel takes the busy bit out last, when the record is whole (kernel/bpf/ringbuf.c).
            length = self._lengths[at // _LENGTH_BYTES]
            if length & _BUSY:
                break
            size = length & ~_DISCARD
            if not length & _DISCARD:
                self._on_bytes(self._copy_record((position + _HEADER) & self._mask, size))
            position += (_HEADER + size + 7) & ~7
            self._consumed[0] = position
            if position >= end:
                end = self._produced[0]

    def _copy_record(self, at: int, size: int) -> bytes:
        first = min(size, self._mask + 1 - at)
        return self._shared[_PAGE + at : _PAGE + at + first] + self._shared[_PAGE : _PAGE + size - first]


_TRACEPOINT, _TYPED, _UPROBE, _SLEEPABLE = "raw_tracepoint__", "btf_tracepoint__", "uprobe__", "sleepable__"
_KINDS = {
    _TRACEPOINT: syscalls.PROGRAM_RAW_TRACEPOINT,
    _TYPED: syscalls.PROGRAM_TRACING,
    "sample__": syscalls.PROGRAM_PERF_EVENT,
    "called__": syscalls.PROGRAM_RAW_TRACEPOINT,
    _UPROBE: syscalls.PROGRAM_KPROBE,
    _SLEEPABLE: syscalls.PROGRAM_SYSCALL,
}
_VERIFIERS = 4


def _explain_refusal(error: OSError) -> PowerprofError:
    """Return the error for a program that the kernel refused, with its reason in one line."""
    if os.geteuid() != 0 or (error.errno in (errno.EPERM, errno.EACCES) and not getattr(error, "log", "")):
        return not_permitted_error()
    lines = [line.strip() for line in getattr(error, "log", "").splitlines() if line.strip()]
    # The last lines of the verifier are statistics.
    lines = [line for line in lines if not line.startswith(("processed ", "verification time", "stack depth"))]
    reason = lines[-1] if lines else reason_of(error)
    return PowerprofError(
        f"cannot load BPF programs: the kernel refused a BPF program: {reason[:300]}",
        f"the kernel's message names what is missing; for what works here: {command_line('doctor')}",
    )


def _explain_unusable(what: str, error: OSError) -> PowerprofError:
    """Return the error for a table that could not be used."""
    return PowerprofError(
        f"cannot {what} ({reason_of(error)})", "free memory: the host's, and its control group's (memory.max)"
    )


class LoadedProgram(Closeable):
    """The programs and maps of one object. `close` or leaving the context detaches and frees them."""

    def __init__(
        self,
        name: str,
        definitions: Mapping[str, int | str],
        *,
        uprobe_type: int = 0,
        btf: Btf | None = None,
        cached: bool = True,
        may_compile: bool = True,
        optional: Collection[str] = (),
        constants: Mapping[str, bytes] | None = None,
        is_attached: bool = True,
    ) -> None:
        """Load `probes/bpf/<name>` and attach its tracepoints, unless `is_attached` is False.

        `uprobe_type`: how its uprobe functions will be attached (`uprobes.choose_attach_type`). `btf`: the types in
        which tracepoints are looked up, by default the running kernel's. `cached` False: compile again.
        `may_compile` False: load a carried program only. `optional`: functions that may be missing if the kernel's
        verifier gives up on them. `constants`: the only entry of tables that no program may change, by their names.

        Raises CapabilityError if this host cannot load it (not permitted; no bcc or headers and no fitting carried
        program), PowerprofError if the kernel refuses the program.
        """
        self._maps: dict[str, tuple[int, MapPlan]] = {}
        self._programs: dict[str, int] = {}
        self._attached: dict[str, int] = {}
        self._rings: list[RingBuffer] = []
        self._mapped: dict[str, mmap.mmap] = {}
        self._stats = -1
        self._run_time_s: float | None = None
        self._cpus = count_possible_cpus()
        # Whether the loaded program is carried by powerprof, not compiled on this host.
        self.is_carried = False
        self._load_as: tuple[int, Btf | None, Collection[str]] = (uprobe_type, btf, optional)
        self._constants = constants or {}
        # The optional functions that the kernel refused.
        self.refused: dict[str, syscalls.RefusedError] = {}
        # Kernels before 5.11 count maps as locked memory.
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        try:
            refused = self._load_carried(name, definitions) if cached else None
            if not self.is_carried and not may_compile:
                raise CapabilityError(f"no carried program of {name} fits this kernel", "compile it")
            if not self.is_carried:
                self._load_compiled(name, definitions, cached, refused)
            if is_attached:
                self.attach()
            if btf is not None:
                btf.keep_answers()
        except OSError as error:
            self.close()
            raise _explain_refusal(error) from error
        except BaseException:
            self.close()
            raise

    def _load_carried(self, name: str, definitions: Mapping[str, int | str]) -> syscalls.RefusedError | None:
        """Load the carried program if there is one. Return the verifier's refusal, or None."""
        compiled = carried.find_carried(name, definitions)
        if compiled is None:
            return None
        try:
            self._load(compiled, definitions)
        except syscalls.RefusedError as error:
            if not error.log:
                raise  # not permitted: another program would not be either
            self.close()
            return error
        self.is_carried = True
        return None

    def _load_compiled(
        self, name: str, definitions: Mapping[str, int | str], cached: bool, refused: syscalls.RefusedError | None
    ) -> None:
        """Load the program that this host's bcc compiles. `refused`: the verifier's refusal of the carried one."""
        # Without permission nothing is known about the kernel, not even which carried program fits.
        if not may_load_programs():
            raise not_permitted_error()
        try:
            compiled = compiled_cache.find_compiled(name, definitions, cached=cached)
        except CapabilityError:
            if refused is not None:
                raise refused from None
            raise
        self._load(compiled, definitions)

    def _load(self, compiled: Compiled, definitions: Mapping[str, int | str]) -> None:
        uprobe_type, btf, optional = self._load_as
        programs = objects.select_programs(compiled, definitions)
        typed = [plan.name for plan in programs if plan.name.startswith(_TYPED)]
        types = btf or (read_kernel_btf() if typed else None)
        ids = {name: types.tracepoint_id(name.removeprefix(_TYPED)) or 0 for name in typed if types is not None}
        attach_types = {_UPROBE: uprobe_type, _TYPED: syscalls.ATTACH_TYPED_TRACEPOINT}
        descriptors: dict[int, int] = {}
        for place, plan in enumerate(compiled.maps):
            if not plan.entries:
                continue  # a table of a switch that is off
            made = syscalls.create_map(plan.name, plan.kind, plan.key_bytes, plan.value_bytes, plan.entries, plan.flags)
            self._maps[plan.name] = (made, plan)
            descriptors[place] = made
            if plan.name in self._constants:
                self.put(plan.name, 0, self._constants[plan.name].ljust(plan.value_bytes, b"\0"))
                syscalls.freeze_map(made)

        def load(program: ProgramPlan) -> None:
            beginning = next(kind for kind in _KINDS if program.name.startswith(kind))
            try:
                self._programs[program.name] = syscalls.load_program(
                    program.name.removeprefix(beginning),
                    _KINDS[beginning],
                    link_maps(program.code, descriptors),
                    attach_type=attach_types.get(beginning, 0),
                    attach_to=ids.get(program.name, 0),
                    flags=syscalls.SLEEPABLE if beginning == _SLEEPABLE else 0,
                )
            except syscalls.RefusedError as error:
                if program.name not in optional:
                    raise
                self.refused[program.name] = error

        # The verifier takes most of a second for all programs, on one CPU each. Start with the largest.
        if len(programs) == 1:
            load(programs[0])
            return
        with ThreadPoolExecutor(min(_VERIFIERS, os.cpu_count() or 1)) as pool:
            list(pool.map(load, sorted(programs, key=lambda plan: -len(plan.code))))

    def close(self) -> None:
        """Detach and free everything."""
        self.detach()
        for ring in self._rings:
            ring.close()
        self._rings.clear()
        for mapped in self._mapped.values():
            mapped.close()
        self._mapped.clear()
        for descriptor in (*self._programs.values(), *(made for made, _ in self._maps.values()), self._stats):
            if descriptor >= 0:
                os.close(descriptor)
        self._programs.clear()
        self._maps.clear()
        self._stats = -1

    def attach(self) -> None:
        """Attach programs to their tracepoints. Raises OSError."""
        for name, program in self._programs.items():
            if name.startswith((_TRACEPOINT, _TYPED)) and name not in self._attached:
                tracepoint = name.removeprefix(_TRACEPOINT) if name.startswith(_TRACEPOINT) else ""
                self._attached[name] = syscalls.open_raw_tracepoint(tracepoint, program)

    @property
    def is_attached(self) -> bool:
        """Whether programs are attached to tracepoints."""
        return bool(self._attached)

    def detach(self) -> None:
        """Detach programs from their tracepoints. They stay loaded, with their maps."""
        for descriptor in self._attached.values():
            os.close(descriptor)
        self._attached.clear()

    def count_run_time(self) -> None:
        """Start the kernel's sum of the time in BPF programs (Linux 5.8)."""
        if self._stats < 0:
            with suppress(OSError):
                self._stats = syscalls.enable_run_time_stats()

    @property
    def is_counting(self) -> bool:
        """Whether the kernel sums the time in BPF programs now."""
        return self._stats >= 0

    def stop_counting(self) -> None:
        """Stop that sum. Each run of a program then reads a clock two times less."""
        if self._stats >= 0:
            self._run_time_s = self.run_time_s()
            os.close(self._stats)
            self._stats = -1

    def run_time_s(self) -> float | None:
        """Return the summed time in these programs in seconds, or None if the kernel does not report it."""
        if self._stats < 0:
            return self._run_time_s
        spent = self.read_runs()
        return None if spent is None else spent[0]

    def read_runs(self) -> tuple[float, int] | None:
        """Return the kernel's sum of the time in these programs in seconds and of their runs; None if it has none.

        Both grow only while `is_counting`.
        """
        spent = [syscalls.read_run_time(program) for program in self._programs.values()]
        known = [runs for runs in spent if runs is not None]
        if len(known) < len(spent):
            return None
        return sum(ns for ns, _ in known) / 1e9, sum(count for _, count in known)

    def descriptor(self, program: str) -> int:
        """Return the descriptor of a program by its function's name. Raises KeyError if the object has none."""
        return self._programs[program]

    def has(self, program: str) -> bool:
        """Return whether the object has such a function."""
        return program in self._programs

    def run(self, program: str, *arguments: int) -> int:
        """Run a function once with these arguments. Return the low 32 bits of its result. Raises OSError."""
        return syscalls.run_program(self._programs[program], *arguments)

    def slots(self, name: str) -> int:
        """Return the capacity of a map."""
        return self._maps[name][1].entries

    def value_bytes(self, name: str) -> int:
        """Return the size of a map's values in bytes."""
        return self._maps[name][1].value_bytes

    def table_bytes(self, name: str) -> bytes:
        """Return all values of an array as bytes."""
        mapped = self.map_array(name)
        return self._read(name)[1] if mapped is None else mapped[: self.slots(name) * self.value_bytes(name)]

    def map_array(self, name: str) -> mmap.mmap | None:
        """Return the values of an array in shared memory, or None if it cannot be mapped.

        A copy of this memory takes a tenth of the time of a read by bpf(2), which returns the keys too.
        """
        descriptor, plan = self._maps[name]
        if not plan.flags & _MAPPABLE or plan.value_bytes % _WORD:
            return None
        if name not in self._mapped:
            size = -(-plan.entries * plan.value_bytes // _PAGE) * _PAGE
            self._mapped[name] = mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        return self._mapped[name]

    def hash_bytes(self, name: str) -> tuple[bytes, bytes]:
        """Return all keys and all values of a hash table as bytes."""
        return self._read(name)

    def entries(self, name: str) -> Iterator[tuple[bytes, bytes]]:
        """Yield each key of a hash table with its value."""
        keys, values = self._read(name)
        plan = self._maps[name][1]
        for number in range(len(keys) // plan.key_bytes):
            key, value = number * plan.key_bytes, number * plan.value_bytes
            yield keys[key : key + plan.key_bytes], values[value : value + plan.value_bytes]

    def _read(self, name: str) -> tuple[bytes, bytes]:
        descriptor, plan = self._maps[name]
        try:
            return syscalls.read_entries(descriptor, plan.key_bytes, plan.value_bytes, plan.entries)
        except OSError as error:
            raise _explain_unusable(f"read the table {name}", error) from error

    def put(self, name: str, key: int | bytes, value: bytes) -> None:
        """Set one entry of an array, by its number, or of a hash table."""
        try:
            syscalls.write_entry(self._maps[name][0], _pack_key(key), value)
        except OSError as error:
            raise _explain_unusable(f"write the table {name}", error) from error

    def put_programs(self, name: str, programs: Sequence[str]) -> None:
        """Fill a table of programs, in this order, so that programs can call them.

        If one of them was not loaded, the table stays empty and a call has no effect.
        """
        if all(program in self._programs for program in programs):
            for number, program in enumerate(programs):
                self.put(name, number, self._programs[program].to_bytes(4, "little"))

    def get(self, name: str, index: int) -> bytes:
        """Return one entry of an array."""
        descriptor, plan = self._maps[name]
        try:
            return syscalls.read_entry(descriptor, _pack_key(index), plan.value_bytes)
        except OSError as error:
            raise _explain_unusable(f"read the table {name}", error) from error

    def delete(self, name: str, keys: bytes) -> None:
        """Delete entries of a hash table by their concatenated keys. Missing entries are skipped."""
        descriptor, plan = self._maps[name]
        try:
            syscalls.delete_entries(descriptor, keys, plan.key_bytes)
        except OSError as error:
            raise _explain_unusable(f"clear the table {name}", error) from error

    def clear(self, name: str) -> None:
        """Delete all entries of a hash table."""
        self.delete(name, self._read(name)[0])

    def per_cpu_sum(self, name: str) -> list[int]:
        """Return each entry of a per-CPU array of u64, summed over CPUs."""
        return [self.per_cpu_words(name, index)[0] for index in range(self._maps[name][1].entries)]

    def per_cpu_words(self, name: str, index: int) -> list[int]:
        """Return the words of one entry of a per-CPU array, each summed over CPUs."""
        descriptor, plan = self._maps[name]
        row = syscalls.read_entry(descriptor, _pack_key(index), plan.value_bytes * self._cpus)
        words, count = memoryview(row).cast("Q"), plan.value_bytes // 8
        return [sum(words[number::count]) for number in range(count)]

    def ring(self, name: str, on_bytes: Callable[[bytes], object]) -> None:
        """Register `on_bytes` for a ring buffer's records; `consume` delivers them."""
        descriptor, plan = self._maps[name]
        self._rings.append(RingBuffer(descriptor, plan.entries, on_bytes))

    def map_descriptor(self, name: str) -> int:
        """Return the descriptor of a ring buffer.

        It is readable while it holds a record that was sent with a wake-up.
        """
        return self._maps[name][0]

    def waits(self, name: str) -> bool:
        """Return whether a ring buffer holds a record that was sent with a wake-up."""
        poll = select.poll()
        poll.register(self._maps[name][0], select.POLLIN)
        return bool(poll.poll(0))

    def consume(self) -> None:
        """Deliver the present records of all ring buffers, without waiting."""
        for ring in self._rings:
            ring.consume()


def _pack_key(key: int | bytes) -> bytes:
    return key.to_bytes(4, "little") if isinstance(key, int) else key
