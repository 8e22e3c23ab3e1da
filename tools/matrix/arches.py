# SPDX-License-Identifier: Apache-2.0
"""Processor architectures of the machines: what Debian, Python's wheels, compilers and QEMU call each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Arch:
    """One architecture. `is_native`: its programs run on this host, so packages can be configured in a root."""

    debian: str
    wheels: tuple[str, ...]
    compiler: tuple[str, str]
    qemu: tuple[str, str]
    machine: tuple[str, ...]
    console: str
    is_native: bool
    # Packages of Debian in place of wheels that PyPI does not have.
    not_on_pypi: Mapping[str, str]


_MANYLINUX = ("_2_28", "_2_27", "_2_17", "2014")

ARCHES: Mapping[str, Arch] = {
    "amd64": Arch(
        debian="amd64",
        wheels=tuple(f"manylinux{name}_x86_64" for name in (*_MANYLINUX, "2010")),
        compiler=("gcc", "gcc"),
        qemu=("qemu-system-x86_64", "qemu-system-x86"),
        # Without AVX: emulating wide registers is slow, and libraries use what they find.
        machine=("-machine", "q35", "-cpu", "Nehalem"),
        console="ttyS0",
        is_native=True,
        not_on_pypi={},
    ),
    "arm64": Arch(
        debian="arm64",
        wheels=tuple(f"manylinux{name}_aarch64" for name in _MANYLINUX),
        compiler=("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu libc6-dev-arm64-cross"),
        qemu=("qemu-system-aarch64", "qemu-system-arm"),
        # Return addresses are signed as on the newest processors, by a cheaper sum than theirs.
        # Without their wide registers, for the same reason as above.
        machine=("-machine", "virt", "-cpu", "max,pauth-impdef=on,sve=off,sme=off"),
        console="ttyAMA0",
        is_native=False,
        not_on_pypi={"drgn": "python3-drgn"},
    ),
}
