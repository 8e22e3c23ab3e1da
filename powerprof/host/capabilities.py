# SPDX-License-Identifier: Apache-2.0
"""Whether a host can do one thing: it works, works in part, is missing with a remedy, or cannot be had."""

from __future__ import annotations

import os
from typing import Literal

import msgspec


class Capability(msgspec.Struct, frozen=True, kw_only=True):
    """Whether this host can do one thing.

    `ok`: it was tried or read and works. `missing`: the `remedy` (a command to type) provides it. `none`:
    this host has no such hardware, nothing to fix. `limited`: it works in part, or only for root.
    """

    name: str
    status: Literal["ok", "missing", "none", "limited"]
    detail: str
    remedy: str | None = None


def ok(name: str, detail: str) -> Capability:
    """Return a capability that works."""
    return Capability(name=name, status="ok", detail=detail)


def missing(name: str, detail: str, remedy: str | None = None) -> Capability:
    """Return a capability that the remedy provides."""
    return Capability(name=name, status="missing", detail=detail, remedy=remedy)


def none(name: str, detail: str) -> Capability:
    """Return a capability that this host cannot have."""
    return Capability(name=name, status="none", detail=detail)


def limited(name: str, detail: str, remedy: str | None = None) -> Capability:
    """Return a capability that works in part."""
    return Capability(name=name, status="limited", detail=detail, remedy=remedy)


def other_host(name: str) -> Capability:
    """Return the value of a capability of the running kernel if sysfs or procfs show another host."""
    return none(name, "not looked for: POWERPROF_SYSFS or POWERPROF_PROCFS show another host")


def is_root() -> bool:
    """Return whether this process runs as root."""
    return os.geteuid() == 0
