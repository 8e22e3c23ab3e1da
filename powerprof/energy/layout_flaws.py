# SPDX-License-Identifier: Apache-2.0
"""Complete sets of domains: the reason why those of a meter are no recognised layout. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from powerprof.energy.layouts import LAYOUTS, MIRRORED_VENDORS, SUMMED, Layout, Topology
from powerprof.model.records import Scope
from powerprof.model.text import join_words


def find_flaws(source: str, domains: Sequence[tuple[str, Scope]], topology: Topology) -> dict[Scope, str]:
    """Return the reason per scope why a meter's domains (name, scope) are no recognised layout. Empty if they are one.

    Memory has its own flaws: the packages without it are complete, and only the sum of both is unknown.
    """
    by_scope: dict[Scope, list[str]] = {}
    for domain, scope in domains:
        if scope in SUMMED:
            by_scope.setdefault(scope, []).append(_strip_parents(domain))
    flaws: dict[Scope, str] = {}
    for scope, names in by_scope.items():
        unlisted = [name for name in names if _find_row(source, scope, name) is None]
        flaw = f"{join_words(unlisted)} by {source} is in no recognised layout" if unlisted else None
        flaw = flaw or _check_count(source, scope, names, by_scope, topology)
        if flaw is not None:
            flaws[scope] = flaw
    return flaws


def _strip_parents(domain: str) -> str:
    """Return a domain's name without the prefix and suffix that make it unique."""
    return domain.rsplit("/", 1)[-1].split("@", 1)[0]


def _find_row(source: str, scope: Scope, name: str) -> Layout | None:
    for row in LAYOUTS:
        pattern = re.escape(row.domain).replace(r"\{\}", ".+") + r"( \S+)?" if row.domain else row.channel
        if source in row.sources and row.scope == scope and re.fullmatch(pattern, name):
            return row
    # A channel without a label has the chip's name, and a flaw.
    return next((row for row in LAYOUTS if source in row.sources and row.scope == scope and " channel " in name), None)


def _check_count(
    source: str, scope: Scope, names: Sequence[str], by_scope: Mapping[Scope, Sequence[str]], topology: Topology
) -> str | None:
    row = _find_row(source, scope, names[0])
    sockets = len(topology.dies)
    if row is None or row.count == "any":
        return None
    if row.count == "one":
        what = "counters of a platform, which has one" if scope == "psys" else "meters each measure a whole machine"
        return None if len(names) == 1 else f"{len(names)} {what}"
    if scope == "package" and len(set(names)) == len(names):
        return _check_packages(names, topology)
    if scope == "dram":
        sockets = len(by_scope.get("package", ())) or sockets
    counts = {names.count(name) for name in names} if scope == "rail" else {len(names)}
    if len(counts) > 1 or (sockets and counts != {sockets}):
        shown = min(counts)
        if sockets and shown < sockets:
            return f"{scope} is shown for {shown} of {sockets} sockets"
        return f"{max(counts)} {scope} channels for {sockets or shown} sockets"
    return _find_missing_rail(source, names) if scope == "rail" else None


def _find_missing_rail(source: str, names: Sequence[str]) -> str | None:
    """Return the reason if a driver shows some rails of a socket and no other ones."""
    drivers = {row.driver for name in names if (row := _find_row(source, "rail", name)) is not None}
    for driver in sorted(drivers):
        rails = [row.domain for row in LAYOUTS if row.driver == driver and row.scope == "rail" and row.count != "-"]
        missing = [rail for rail in rails if rail not in names]
        if missing:
            return f"{driver} shows no {join_words(missing)}, a part of the socket"
    return None


def _check_packages(names: Sequence[str], topology: Topology) -> str | None:
    dies: dict[int, list[int | None]] = {}
    for name in names:
        match = re.fullmatch(r"package-(\d+)(?:-die-(\d+))?", name)
        if match is not None:
            dies.setdefault(int(match[1]), []).append(None if match[2] is None else int(match[2]))
    # Sockets are numbered from 0 in a recording without a topology.
    expected = set(topology.dies) or set(range(max(dies, default=0) + 1))
    missing, extra = sorted(expected - set(dies)), sorted(set(dies) - expected)
    if missing:
        return f"{join_words([f'package-{n}' for n in missing])} of {len(expected)} sockets has no counter here"
    if extra:
        return f"{join_words([f'package-{n}' for n in extra])} is not a socket of this host"
    for package, numbers in dies.items():
        if numbers == [None]:
            continue
        if len(numbers) == 1 and re.fullmatch(MIRRORED_VENDORS, topology.vendor or ""):
            continue
        wanted = topology.dies.get(package) or frozenset(range(len(numbers)))
        if set(numbers) != wanted:
            return f"package-{package} has {len(wanted)} dies and counters of {len(numbers)}"
    return None
