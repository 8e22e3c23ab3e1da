# SPDX-License-Identifier: Apache-2.0
"""What `powerprof idle` saves: `powerprof.run/1` with the differences of its phases."""

from __future__ import annotations

import msgspec

from powerprof.records import Delta, Run


class IdleOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What `idle` was asked for."""

    clients_count: int | None = None
    duration_s: float | None = None
    repeat_count: int | None = None
    residency_source: str | None = None
    sysfs: str | None = None


class IdleRun(Run, frozen=True, kw_only=True):
    """What `idle` saves: also how its phases differ, and how far the baseline moved meanwhile."""

    options: IdleOptions = IdleOptions()
    deltas: list[Delta] = msgspec.field(default_factory=list)
    drift: list[Delta] = msgspec.field(default_factory=list)
