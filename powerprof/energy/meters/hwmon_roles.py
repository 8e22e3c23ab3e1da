# SPDX-License-Identifier: Apache-2.0
"""Roles of hwmon channels: the part of the host that each channel of a known chip measures. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from powerprof.energy.layouts import LAYOUTS, SUPPLIES, Layout
from powerprof.model.records import Scope
from powerprof.model.text import join_words

# Cards, disks and fans (drivers/acpi/fan_hwmon.c) are shown and never counted as CPUs. An SFP's power is its light's.
_DEVICES = re.compile(
    r"amdgpu|radeon|nouveau|i915|xe$|nvme|drivetemp|mlx|bnxt|nvidia|habanalabs|sfp|nfp|acpi_fan", re.I
)
# PMBus monitors, hot-swap controllers and regulators of boards (Documentation/hwmon, drivers/hwmon/pmbus).
_BOARD_CHIPS = re.compile(
    r"adm1\d+|lm25\d+|lm506\d|ltc?\d+|ltm\d+|tps\d+|isl\d+|raa\d+|xdpe\w+|mpq?\d+|ir\w+|max\d+|ucd\d+|zl\d+|tda\d+"
    r"|q54sj\w+|pim\d+|lx\d+|bmr\d+|ina\d+|pxe1610|pli1209\w*|pm6764\w*|stpddc\w*|sbrmi|occ|aem\d?",
    re.I,
)


class Role(msgspec.Struct, frozen=True):
    """The meaning of a channel.

    Attributes:
        domain: the name in readings.
        inside: the domain of the same chip that includes it.
        flaw: the reason why its tier has no total.
    """

    domain: str
    scope: Scope
    inside: str | None = None
    flaw: str | None = None


def find_roles(chip: str, labels: Mapping[str, str | None], *, doubt: str | None = None) -> dict[str, Role]:
    """Return the roles of a chip's channels by number. `labels` has None for a channel without a label.

    With `doubt` the machine uses the chip for another purpose than the table lists: all channels are in no sum.
    """
    rows = [row for row in LAYOUTS if "hwmon" in row.sources and re.fullmatch(row.driver, chip)]
    if not rows or doubt is not None:
        return {number: _make_unlisted_role(chip, number, label) for number, label in labels.items()}
    matches: dict[Layout, list[str]] = {}
    roles: dict[str, Role] = {}
    for number, label in labels.items():
        row = next((row for row in rows if _is_channel(row, number, label, _needs_labels(rows))), None)
        if row is not None:
            matches.setdefault(row, []).append(number)
            continue
        # A label of no row is a known part. A channel without a label may be a part of the sum.
        roles[number] = Role(f"other/{chip} {label or number}", "other")
        if label is None and _needs_labels(rows):
            flaw = f"channel {number} of {chip} has no label, so its part of the machine is unknown"
            roles[number] = Role(f"{chip} channel {number}", _select_summed_rows(rows)[0].scope, flaw=flaw)
    for row, numbers in matches.items():
        for number in numbers:
            roles[number] = _make_role(row, rows, number, labels, matches)
    return roles


def _make_role(
    row: Layout,
    rows: Sequence[Layout],
    number: str,
    labels: Mapping[str, str | None],
    matches: Mapping[Layout, list[str]],
) -> Role:
    label = labels[number] or number
    numbers = matches[row]
    named = re.fullmatch(row.channel, label)
    text = str(int(named[1])) if named is not None and named.groups() and named[1].isdigit() else label
    domain = row.domain.format(text)
    if row.count == "-":
        inside = {other.domain.format("0") for other in matches if other.count != "-"}
        if row.scope == "core":
            sockets = [n for other, ns in matches.items() if other.scope == "package" for n in ns]
            return Role(domain, "core", row.inside if len(sockets) == 1 and row.inside in inside else None)
        return Role(domain, "rail", row.inside) if row.inside in inside else Role(f"other/{domain}", "other")
    if row.inside is not None:  # the output of a supply
        if any(other.domain == row.inside for other in matches):
            return Role(domain, "rail", row.inside)
        if [labels[n] for n in numbers].count(labels[number]) > 1:
            return Role(f"{domain} {number}", row.scope, flaw=f"one chip has several channels {label}")
        return Role(f"{row.inside} output" if len(numbers) == 1 else domain, row.scope)
    first = next(other for other in rows if other in matches and other.scope == row.scope)
    if row.scope == "server" and row is not first:
        return Role(f"other/{label}", "other")
    if len(numbers) > 1 and "{}" not in row.domain:
        names = join_words([labels[n] or n for n in numbers])
        flaw = f"one chip has {len(numbers)} channels of one kind ({names}): they may add up or be one"
        return Role(f"{domain} {number}", row.scope, flaw=flaw)
    return Role(domain, row.scope)


def _is_channel(row: Layout, number: str, label: str | None, needs_label: bool) -> bool:
    if row.channel.startswith("#"):
        return row.channel == f"#{number}"
    return re.fullmatch(row.channel, label or ("" if needs_label else number)) is not None


def _select_summed_rows(rows: Sequence[Layout]) -> list[Layout]:
    return [row for row in rows if row.count != "-"]


def _needs_labels(rows: Sequence[Layout]) -> bool:
    return bool(_select_summed_rows(rows)) and not any(row.channel.startswith("#") for row in rows)


def _make_unlisted_role(chip: str, number: str, label: str | None) -> Role:
    if _DEVICES.match(chip):
        return Role(f"device/{label or chip}", "device")
    name = f"{chip} {label}" if label else chip if number == "1" else f"{chip} {number}"
    return Role(f"other/{name}", "other")


def is_listed(chip: str, label: str) -> bool:
    """Return whether a row of the table names this label of a chip."""
    rows = (row for row in LAYOUTS if "hwmon" in row.sources and re.fullmatch(row.driver, chip))
    return any(re.fullmatch(row.channel, label) for row in rows)


def is_supply(chip: str) -> bool:
    """Return whether a chip is a power supply of a known driver."""
    return re.fullmatch(SUPPLIES, chip) is not None


def is_unknown_supply(chip: str, label: str | None) -> bool:
    """Return whether a channel may be the input of a power supply of an unknown driver."""
    is_known = re.fullmatch(SUPPLIES, chip) or _BOARD_CHIPS.fullmatch(chip) or _DEVICES.match(chip)
    return not is_known and re.fullmatch(r"pin\d*", label or "") is not None
