# SPDX-License-Identifier: Apache-2.0
"""What each verb about a target asks for. Groups of options that verbs share are passed whole."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


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


class MeterChoice(Protocol):
    """Which meters are read."""

    @property
    def energy_source(self) -> str: ...
    @property
    def meter_log(self) -> Path | None: ...


# `settle`: this process does nothing else afterwards, and may give up what root may do.


@dataclass(frozen=True, kw_only=True)
class AttributeRequest:
    """`attribute`: who wakes the CPUs."""

    duration_s: float
    stack_buffer_kib: int
    meters: MeterChoice
    settle: bool = False


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
