# SPDX-License-Identifier: Apache-2.0
"""What two measurements could be confused by: all that differs around them, and was not what was asked."""

from __future__ import annotations

from typing import Any, Protocol

from powerprof.experiment.records import ConditionRecord

# Not part of it: names, and what is new at each boot.
_HOST_IGNORED = ("hostname", "boot_id", "mitigations")


class Described(Protocol):
    """What a saved record says of how it was made."""

    @property
    def started_at(self) -> str:
        """RFC 3339."""

    @property
    def condition(self) -> ConditionRecord:
        """What was run."""

    @property
    def host(self) -> dict[str, Any]:
        """The machine and its kernel."""

    @property
    def server(self) -> dict[str, Any]:
        """The server."""

    @property
    def options(self) -> dict[str, Any]:
        """How it was measured."""


def differences(first: Described, second: Described) -> list[str]:
    """What differs in host, kernel, server and settings, one line each; first what matters most."""
    texts = []
    for label, a, b in (
        ("host", first.host, second.host),
        ("server", first.server, second.server),
        ("setting", first.condition.settings, second.condition.settings),
        ("load", first.condition.load, second.condition.load),
        ("option", first.options, second.options),
    ):
        for key in sorted({*a, *b}):
            if key in _HOST_IGNORED or key in ("pid", "sysfs") or a.get(key) == b.get(key):
                continue
            texts.append(f"{label} {key}: {_show(a.get(key))} → {_show(b.get(key))}")
    if first.host.get("hostname") != second.host.get("hostname"):
        texts.insert(0, f"host: {_show(first.host.get('hostname'))} → {_show(second.host.get('hostname'))}")
    if first.condition.work != second.condition.work:
        texts.append(f"condition: {first.condition.name} → {second.condition.name}")
    if first.started_at[:10] != second.started_at[:10]:
        texts.append(f"date: {first.started_at[:10]} → {second.started_at[:10]}")
    return texts


def _show(value: Any) -> str:
    return "unknown" if value is None else str(value)[:80]
