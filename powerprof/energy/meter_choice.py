# SPDX-License-Identifier: Apache-2.0
"""The text of `--meter`: sources, the log of an external meter, or the model with facts that a guest hides."""

from __future__ import annotations

import re
from pathlib import Path

from powerprof.energy.domains import EnergyRequest, Vcpu
from powerprof.energy.families import find_kind
from powerprof.energy.meter_log import split_column
from powerprof.energy.meters import parse_sources
from powerprof.system.errors import UsageError
from powerprof.system.files import check_outside

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
    for log in logs:
        check_outside(split_column(log)[0])
    if sources:
        parse_sources(",".join(sources))
    return EnergyRequest(source=",".join(sources) or "meter_log", meter_log=logs[0] if logs else None)


def _parse_model(text: str, match: re.Match[str]) -> EnergyRequest:
    cpu, share = (None if match[name] is None else match[name].strip() for name in ("cpu", "share"))
    if cpu is not None:
        find_kind(cpu)
    if share is not None and share not in _SHARES:
        raise UsageError(f"--meter {text}: a CPU of a guest is a thread or a core", "such as --meter model@thread")
    return EnergyRequest(source="model", cpu_model=cpu, vcpu=None if share is None else _SHARES[share])


def _is_file(word: str) -> bool:
    """Return whether a word is a file, which has a dot or a slash; sources have neither before a colon."""
    return any(mark in word.partition(":")[0] for mark in "./")
