# SPDX-License-Identifier: Apache-2.0
"""Loads the shipped BPF programs: the only importer of bcc.

Struct offsets, the presence of tracepoints and addresses of kernel functions are put in front of a program as
definitions; they come from the running kernel (BTF, kallsyms), never from headers.
"""

from __future__ import annotations

import ctypes
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from powerprof import paths
from powerprof.closing import Closing
from powerprof.errors import CapabilityError, PowerprofError
from powerprof.tracing.btf import Btf
from powerprof.tracing.headers import kernel_headers, remedy

PRIVILEGE_HINT = "run as root, or: setcap cap_bpf,cap_perfmon,cap_sys_ptrace+ep on the interpreter"
_BPF_ENABLE_STATS = 32
_SYS_BPF = {"x86_64": 321, "aarch64": 280}


@contextmanager
def _captured_stderr() -> Iterator[Callable[[], str]]:
    """clang and libbpf write to file descriptor 2; what they say belongs into one error line, not on the terminal."""
    with tempfile.TemporaryFile() as file:
        saved = os.dup(2)
        os.dup2(file.fileno(), 2)

        def text() -> str:
            file.seek(0)
            return file.read().decode("utf-8", "replace")

        try:
            yield text
        finally:
            os.dup2(saved, 2)
            os.close(saved)


def possible_cpus() -> int:
    """One more than the highest CPU number that this kernel may ever have (from `possible`, such as 0-63)."""
    from powerprof.files import read_text

    text = read_text(paths.sysfs() / "devices/system/cpu/possible")
    return int(text.replace(",", "-").split("-")[-1]) + 1


def struct_definitions(btf: Btf, fields: Mapping[str, tuple[str, str]]) -> dict[str, int]:
    """`OFFSET_<name>` for each name → (struct, field)."""
    return {f"OFFSET_{name}": btf.field_offset(*where) for name, where in fields.items()}


def argument_definitions(btf: Btf, tracepoint: str, usual: Sequence[str], *optional: str) -> dict[str, int]:
    """`ARG_<tracepoint>_<argument>`: where a raw tracepoint passes its arguments on this kernel.

    `usual` is their order where the kernel does not name them; those of `optional` are defined where it does.
    """
    named = btf.tracepoint_arguments(tracepoint)
    order = named if all(name in named for name in usual) else tuple(usual)
    wanted = [*usual, *(name for name in optional if name in order)]
    return {f"ARG_{tracepoint}_{name}": order.index(name) for name in wanted}


def source_of(name: str) -> str:
    """A shipped program with its own headers put in: bcc translates table operations in the main text only."""
    text = (paths.data_dir("probes") / "bpf" / name).read_text()
    return re.sub(r'^#include "([\w.]+)"$', lambda match: source_of(match[1]), text, flags=re.MULTILINE)


def explain(error: Exception, what: str, said: str = "") -> PowerprofError:
    """bcc's one kind of error as ours: what was refused, by whom and why. `said` is what was on descriptor 2."""
    text = f"{error} {said}".lower()
    if os.geteuid() != 0 or "permitted" in text or "permission" in text:
        return CapabilityError(f"{what}: not permitted", PRIVILEGE_HINT)
    if "kernel headers" in text or "file not found" in text:
        return CapabilityError("cannot compile BPF programs: kernel headers do not fit", remedy())
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    # The verifier ends with its statistics.
    lines = [line for line in lines if not line.startswith(("processed ", "verification time", "stack depth"))]
    reason = next((line for line in lines if "error:" in line), lines[-1] if lines else str(error))
    return PowerprofError(f"{what}: the kernel refused a BPF program: {reason[:300]}")


class Program(Closing):
    """A loaded and attached BPF program; leaving the context detaches and frees all of it."""

    def __init__(self, name: str, definitions: Mapping[str, int | str]) -> None:
        """Compile `probes/bpf/<name>`.

        Raises CapabilityError where this host cannot (no bcc, no headers, not permitted), PowerprofError where
        the kernel refuses the program.
        """
        self._stats_fd = -1
        self._detached: list[bytes] = []
        try:
            import bcc
        except ImportError:
            raise CapabilityError("bcc is not installed", "apt install python3-bpfcc") from None
        source = source_of(name)
        prelude = "".join(f"#define {key} {value}\n" for key, value in definitions.items())
        headers = kernel_headers()
        # What the caller's environment says of headers is not for root to compile.
        for variable in ("BCC_KERNEL_SOURCE", "BCC_LINUX_VERSION_CODE"):
            os.environ.pop(variable, None)
        if headers is not None:
            os.environ["BCC_KERNEL_SOURCE"] = str(headers)
        with _captured_stderr() as said:
            try:
                self.bpf: Any = bcc.BPF(text=prelude + source, cflags=["-Wno-macro-redefined"])
            except Exception as error:
                raise explain(error, "cannot load BPF programs", said()) from error

    def close(self) -> None:
        """Detach and free."""
        if self._stats_fd >= 0:
            os.close(self._stats_fd)
            self._stats_fd = -1
        with _captured_stderr():
            self.bpf.cleanup()

    def detach(self) -> None:
        """Take the program off its tracepoints; it stays loaded, with its tables."""
        for name in list(self.bpf.raw_tracepoint_fds):
            self.bpf.detach_raw_tracepoint(name)
            self._detached.append(name)

    def attach(self) -> None:
        """Put it back on the tracepoints from which `detach` took it."""
        while self._detached:
            name = self._detached.pop()
            self.bpf.attach_raw_tracepoint(tp=name, fn_name=b"raw_tracepoint__" + name)

    def count_run_time(self) -> None:
        """Let the kernel sum the time spent in BPF programs while this program is loaded (Linux ≥ 5.8)."""
        number = _SYS_BPF.get(os.uname().machine)
        if number is None or self._stats_fd >= 0:
            return
        attributes = ctypes.create_string_buffer(4)
        self._stats_fd = ctypes.CDLL(None, use_errno=True).syscall(number, _BPF_ENABLE_STATS, attributes, 4)

    def run_time_s(self) -> float | None:
        """Time spent in this object's BPF programs since `count_run_time`; None where the kernel does not tell."""
        if self._stats_fd < 0:
            return None
        total_ns = 0
        for function in self.bpf.funcs.values():
            try:
                info = Path(f"/proc/self/fdinfo/{function.fd}").read_text()
            except OSError:
                return None
            for line in info.splitlines():
                if line.startswith("run_time_ns:"):
                    total_ns += int(line.split()[1])
        return total_ns / 1e9

    def per_cpu_sum(self, name: str) -> list[int]:
        """Each entry of a per-CPU array of u64, summed over CPUs."""
        table = self.bpf[name]
        return [int(table.sum(index).value) for index in range(len(table))]

    def ring(self, name: str, on_bytes: Callable[[bytes], None]) -> None:
        """Register `on_bytes` for a ring buffer's records; `consume` delivers them."""

        def deliver(context: object, data: int, size: int) -> int:
            on_bytes(ctypes.string_at(data, size))
            return 0

        self.bpf[name].open_ring_buffer(deliver)

    def consume(self) -> None:
        """Deliver what the ring buffers hold now; never waits."""
        self.bpf.ring_buffer_consume()
