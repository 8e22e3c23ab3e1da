# SPDX-License-Identifier: Apache-2.0
"""The text of `--meter`: meters, the log of an external meter, or the model with facts that a guest hides."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import msgspec

from powerprof.system.errors import UnknownNameError, UsageError
from powerprof.system.outside_files import check_outside

Vcpu = Literal["thread", "core"]


class EnergyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The choice of meters, and facts for the estimate that a guest hides.

    Attributes:
        source: the value of `--meter`.
        meter_log: the CSV file that an external meter writes.
        cpu_model: the name of the CPU, as `find_kind` reads it. None: use what this host reports.
        vcpu: whether one CPU of this host is a hardware thread or a whole core. None: use what this host
            reports.
    """

    source: str = "auto"
    meter_log: Path | None = None
    cpu_model: str | None = None
    vcpu: Vcpu | None = None


# The best meter, and the CPU that this host reports.
DEFAULT_REQUEST = EnergyRequest()
NO_METER = EnergyRequest(source="none")
# The order of `auto`: exact counters of the CPUs first, then wider and coarser meters. turbostat reads the same
# registers as the two RAPL meters and disturbs more. IPMI needs windows of half a minute.
AUTO = ("rapl", "perf_power", "turbostat", "hwmon", "battery", "ipmi")
NAMES = (*AUTO, "meter_log")
HOST_PREFIX = "host:"


def parse_choice(choice: str) -> dict[str, tuple[str, ...]]:
    """Return the meters named in `--meter`, each with the domains that stand for the machine.

    Without domains the recognised layout counts. Raise UsageError for an unknown name or one that must be alone.
    """
    words = [word.strip() for word in choice.split(",")]
    names: dict[str, tuple[str, ...]] = {}
    known = (*NAMES, "auto", "none", "model")
    twice = unknown = None
    for word in words:
        name, colon, domains = word.partition(":")
        if word.startswith(HOST_PREFIX) or name not in NAMES:
            name, domains = word, ""
        is_known = name.startswith(HOST_PREFIX) or (name in known and bool(domains) == bool(colon))
        unknown = unknown if is_known or unknown else word or "an empty name"
        twice = name if name in names else twice
        names[name] = tuple(domain.strip() for domain in domains.split("+") if domain.strip())
    if twice:
        raise UsageError(f"--meter {choice} names {twice} twice", "name each meter once")
    alone = len(words) > 1 and {"auto", "none", "model"} & set(words)
    if unknown or alone:
        reason = f"{min(alone)} stands alone" if alone else f"{unknown} is not a choice"
        raise UnknownNameError(
            f"--meter {choice}: {reason}",
            unknown or "",
            known,
            f"auto, none, model, or one or more of {', '.join(NAMES)}, host:URL, the CSV log of a meter "
            "(a comma between); NAME:DOMAIN+DOMAIN sums these domains",
        )
    return names


_MODEL = re.compile(r"model(?::(?P<cpu>[^@]*))?(?:@(?P<share>.*))?")
_SHARES: dict[str, Vcpu] = {"thread": "thread", "core": "core"}


def parse_meter(text: str) -> EnergyRequest:
    """Return the request for the meters of `rapl`, `rapl,wall.csv#watts` or `model:EPYC 7763:256@core`.

    Raises:
        UsageError: an unknown source or CPU, or two logs.
        DataError: the log cannot be read.
    """
    if match := _MODEL.fullmatch(text.strip()):
        return _parse_model(text, match)
    words = [word.strip() for word in text.split(",")]
    logs = [Path(word) for word in words if _is_file(word)]
    sources = [word for word in words if not _is_file(word)]
    if len(logs) > 1:
        raise UsageError(f"--meter {text} names two logs", "name one meter log")
    if logs:
        from powerprof.energy.meters.meter_log import split_column

        check_outside(split_column(logs[0])[0])
    if sources:
        parse_choice(",".join(sources))
    return EnergyRequest(source=",".join(sources) or "meter_log", meter_log=logs[0] if logs else None)


def _parse_model(text: str, match: re.Match[str]) -> EnergyRequest:
    cpu, share = (None if match[name] is None else match[name].strip() for name in ("cpu", "share"))
    if cpu is not None:
        from powerprof.energy.cpu_kinds import find_kind

        find_kind(cpu)
    if share is not None and share not in _SHARES:
        raise UsageError(f"--meter {text}: a CPU of a guest is a thread or a core", "such as --meter model@thread")
    return EnergyRequest(source="model", cpu_model=cpu, vcpu=None if share is None else _SHARES[share])


def _is_file(word: str) -> bool:
    """Return whether a word is a file, which has a dot or a slash; sources have neither before a colon."""
    return any(mark in word.partition(":")[0] for mark in "./")
