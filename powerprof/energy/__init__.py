"""Honest joules: from every meter that a host may have, or an honest estimate where it has none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from powerprof.energy.meters import MeterSet, open_meters

__all__ = ["MeterSet", "open_meters"]


def __getattr__(name: str) -> Any:
    # Late, because the meters in powerprof.sources import the series of this package.
    if name in __all__:
        from powerprof.energy import meters

        return getattr(meters, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
