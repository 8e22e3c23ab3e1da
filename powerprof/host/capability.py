# SPDX-License-Identifier: Apache-2.0
"""One capability of a host as a value."""

from __future__ import annotations

from typing import Literal

import msgspec

Status = Literal["ok", "missing", "none", "limited"]


class Capability(msgspec.Struct, frozen=True, kw_only=True):
    """Whether this host can do one thing.

    `ok`: it was tried or read and works. `missing`: the `remedy` (a command to type) provides it. `none`:
    this host has no such hardware, nothing to fix. `limited`: it works in part, or only for root.
    """

    name: str
    status: Status
    detail: str
    remedy: str | None = None


def ok(name: str, detail: str) -> Capability:
    """It works."""
    return Capability(name=name, status="ok", detail=detail)


def missing(name: str, detail: str, remedy: str | None = None) -> Capability:
    """It could be there and is not."""
    return Capability(name=name, status="missing", detail=detail, remedy=remedy)


def none(name: str, detail: str) -> Capability:
    """This host has no such thing."""
    return Capability(name=name, status="none", detail=detail)


def limited(name: str, detail: str, remedy: str | None = None) -> Capability:
    """It works in part."""
    return Capability(name=name, status="limited", detail=detail, remedy=remedy)
