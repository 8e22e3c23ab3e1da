# SPDX-License-Identifier: Apache-2.0
"""What each verb about a target asks for. Groups of options that verbs share are passed whole."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from powerprof.energy.domains import DEFAULT_REQUEST, EnergyRequest
from powerprof.system.errors import UsageError

_PAGE_KIB = 4


class TargetChoice(Protocol):
    """Which processes are meant."""

    @property
    def pid(self) -> list[str] | None: ...
    @property
    def cgroup(self) -> str | None: ...
    @property
    def system(self) -> bool: ...


class ServerChoice(Protocol):
    """The server to ask for its threads' names; one of this host is found without it."""

    @property
    def server(self) -> str | None: ...
    @property
    def socket(self) -> Path | None: ...
    @property
    def defaults_file(self) -> Path | None: ...


# `settle`: this process does nothing else afterwards, and may give up what root may do.


@dataclass(frozen=True, kw_only=True)
class AttributeRequest:
    """`attribute`: who wakes the CPUs. Raises UsageError where the buffer for stacks is no power of two."""

    duration_s: float
    stack_buffer_kib: int = 16384
    energy: EnergyRequest = DEFAULT_REQUEST
    settle: bool = False

    def __post_init__(self) -> None:
        if self.stack_buffer_kib < _PAGE_KIB or self.stack_buffer_kib.bit_count() != 1:
            raise UsageError(f"--stack-buffer {self.stack_buffer_kib} is not a power of two", "for example 8192")

    @property
    def stack_pages(self) -> int:
        """The buffer in pages."""
        return self.stack_buffer_kib // _PAGE_KIB


@dataclass(frozen=True, kw_only=True)
class ProfileRequest:
    """`profile`: what to sample or count, and how often."""

    duration_s: float
    event: str = "cpu-clock"
    frequency_hz: int = 99
    settle: bool = False


@dataclass(frozen=True, kw_only=True)
class FunctionsRequest:
    """`functions`: which to probe (a glob, or module:glob), and how many at most."""

    duration_s: float
    pattern: str
    limit: int = 200
    backend: str = "auto"
    unwinding_risk: bool = False
    settle: bool = False


@dataclass(frozen=True, kw_only=True)
class OffCpuRequest:
    """`offcpu`: how long threads sleep and wait for a CPU, and who wakes them."""

    duration_s: float
    backend: str = "auto"
    settle: bool = False


@dataclass(frozen=True, kw_only=True)
class SyscallRequest:
    """`syscalls`: calls by kind, reads and writes by file, waits for locks."""

    duration_s: float
    settle: bool = False
