# SPDX-License-Identifier: Apache-2.0
"""List the confounders of two measurements: everything else that differs between them."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from powerprof.experiment.records import ConditionRecord
from powerprof.model.records import ServerInfo

# Ignored: names, and values that are new at each boot.
_HOST_IGNORED = ("hostname", "boot_id", "mitigations")


class Described(Protocol):
    """A saved record with its circumstances."""

    @property
    def started_at(self) -> str: ...
    @property
    def condition(self) -> ConditionRecord: ...
    @property
    def host(self) -> dict[str, Any]: ...
    @property
    def server(self) -> ServerInfo | None: ...
    @property
    def options(self) -> dict[str, Any]: ...


def list_differences(first: Described, second: Described) -> list[str]:
    """Return a line per difference in host, kernel, server and settings; the most important first."""
    texts = []
    for label, a, b in (
        ("host", first.host, second.host),
        ("server", _describe_server(first.server), _describe_server(second.server)),
        ("setting", first.condition.settings, second.condition.settings),
        ("load", first.condition.load, second.condition.load),
        ("option", first.options, second.options),
    ):
        for key in sorted({*a, *b}):
            if key in _HOST_IGNORED or key in ("pid", "sysfs") or a.get(key) == b.get(key):
                continue
            texts.append(f"{label} {key}: {_show_value(a.get(key))} → {_show_value(b.get(key))}")
    if first.host.get("hostname") != second.host.get("hostname"):
        texts.insert(0, f"host: {_show_value(first.host.get('hostname'))} → {_show_value(second.host.get('hostname'))}")
    if first.condition.work != second.condition.work:
        texts.append(f"condition: {first.condition.name} → {second.condition.name}")
    if first.started_at[:10] != second.started_at[:10]:
        texts.append(f"date: {first.started_at[:10]} → {second.started_at[:10]}")
    return texts


def _describe_server(server: ServerInfo | None) -> dict[str, Any]:
    values = {} if server is None else msgspec.structs.asdict(server)
    return {key: value for key, value in values.items() if value not in (None, {})}


def _show_value(value: Any) -> str:
    return "unknown" if value is None else str(value)[:80]
