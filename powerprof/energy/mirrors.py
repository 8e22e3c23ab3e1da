# SPDX-License-Identifier: Apache-2.0
"""Counters that move alike: one counter that the kernel lists several times, or several counters. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec.structs import replace

from powerprof.energy.layouts import MIRRORED_VENDORS, SUMMED, Topology
from powerprof.energy.meters.meter import DomainEnergy
from powerprof.measure.counters import PACKAGE_WATTS, CounterSample, step_units

# One counter that is read twice differs by its power over the time between the reads: some µs, with many dies some ms,
# on a busy host up to 20 ms.
_READ_S = 50e-6
_SERIES_READ_S = 5e-3
_SLOW_READ_S = 20e-3
# The time between the two reads varies by less than this. Two counters that are so close drift apart faster.
_JITTER_S = 1e-3
_UNIT_JOULES = 1e-4
DIE = re.compile(r"(package-\d+)-(?:die|cpu)-\d+")


def merge_mirrored(
    energies: Sequence[DomainEnergy],
    packages: Sequence[str],
    samples_of: Sequence[Sequence[CounterSample]],
    moduli: Sequence[int | None],
    joules_per_unit: float,
    topology: Topology,
    *,
    is_absolute: bool = True,
) -> list[DomainEnergy]:
    """Return the energies without those that repeat the counter of another domain.

    `packages` has the label of each domain's own package. AMD and Hygon have one counter per socket. Otherwise equal
    values from the first sample to the last are one counter, whatever the topology says: a guest may show one socket
    per CPU. With the growth alone (`is_absolute` false) that is evidence for the dies of one socket only. If the
    evidence is unclear, the domains have a flaw.
    """
    merged: dict[int, int] = {}
    flaws: dict[int, str] = {}
    # Of two domains with one counter the first with a figure remains.
    numbers = [n for n, item in enumerate(energies) if item.scope in SUMMED and item.inside is None]
    numbers.sort(key=lambda n: energies[n].energy.joules is None)
    for first, second in itertools.combinations(numbers, 2):
        a, b = energies[first], energies[second]
        if a.scope != b.scope or first in merged or second in merged:
            continue
        sockets = [DIE.fullmatch(packages[n]) for n in (first, second)]
        one_socket = sockets[0] is not None and sockets[1] is not None and sockets[0][1] == sockets[1][1]
        if one_socket and re.fullmatch(MIRRORED_VENDORS, topology.vendor or ""):
            merged[second] = first
            continue
        alike = compare_counters(
            samples_of[first], samples_of[second], joules_per_unit, moduli[first], is_absolute=is_absolute
        )
        if alike == "one" and (one_socket or is_absolute):
            merged[second] = first
        elif alike == "one" or (alike == "unclear" and (one_socket or is_absolute)):
            flaws[first] = f"{a.domain} and {b.domain} count alike: one counter or two"
    return _rename_merged(energies, merged, flaws)


def _rename_merged(
    energies: Sequence[DomainEnergy], merged: Mapping[int, int], flaws: Mapping[int, str]
) -> list[DomainEnergy]:
    """Return the remaining energies, each named by its socket if all of its dies were one counter."""
    dies: dict[str, list[int]] = {}
    for number, item in enumerate(energies):
        match = DIE.fullmatch(item.domain)
        if match is not None:
            dies.setdefault(match[1], []).append(number)
    names = {
        energies[number].domain: socket
        for socket, numbers in dies.items()
        if numbers[1:] and all(merged.get(number) == numbers[0] for number in numbers[1:])
        for number in numbers
    }
    remaining = []
    for number, item in enumerate(energies):
        if number in merged:
            continue
        kept = replace(item, inside=names.get(item.inside or "", item.inside), flaw=flaws.get(number, item.flaw))
        repeated = [energies[n].domain for n, first in merged.items() if first == number]
        if repeated:
            die, *rest = item.domain.split("/")
            note = f"is one counter for all of {', '.join([item.domain, *repeated])}: counted once"
            energy = replace(item.energy, notes=(*item.energy.notes, note))
            others = () if die in names else tuple(repeated)
            kept = replace(kept, domain="/".join([names.get(die, die), *rest]), energy=energy, repeats=others)
        remaining.append(kept)
    return remaining


def compare_counters(
    first: Sequence[CounterSample],
    second: Sequence[CounterSample],
    joules_per_unit: float,
    modulus: int | None,
    *,
    is_absolute: bool,
) -> Literal["one", "two", "unclear"]:
    """Return whether two series of samples, read at the same times, are of one counter."""
    pairs = [
        (a.time_s, a.value, b.value)
        for a, b in zip(first, second, strict=False)
        if a.value is not None and b.value is not None
    ]
    if len(pairs) < 2 or pairs[-1][0] <= pairs[0][0]:
        return "two"
    moved = sum(step_units(old[1], new[1], modulus) or 0 for old, new in itertools.pairwise(pairs))
    if not moved:
        return "two"
    watts = min(moved * joules_per_unit / (pairs[-1][0] - pairs[0][0]), PACKAGE_WATTS)
    offset = 0 if is_absolute else pairs[0][1] - pairs[0][2]
    units = [abs(a - b - offset) for _, a, b in pairs]
    # One of them may have been read just before a wrap.
    gaps = [(unit if modulus is None else min(unit, abs(modulus - unit))) * joules_per_unit for unit in units]
    if all(gap <= max(_UNIT_JOULES, watts * _READ_S) for gap in gaps):
        return "one"
    if any(gap > watts * _SLOW_READ_S for gap in gaps):
        return "two"
    is_steady = max(gaps) <= watts * _SERIES_READ_S and max(gaps) - min(gaps) <= watts * _JITTER_S
    return "one" if is_absolute and is_steady else "unclear"
