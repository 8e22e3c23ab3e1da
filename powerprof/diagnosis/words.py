# SPDX-License-Identifier: Apache-2.0
"""Figures as they stand in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from powerprof.diagnosis.evidence import Evidence, ScheduledEvent, ThreadWakeups
from powerprof.diagnosis.findings import LiveRemedy
from powerprof.reversible.events import shown
from powerprof.text import number

_SHOWN = 16


def each_second(hertz: float, what: str) -> str:
    """`320 connections/s`, `2.5 idle periods/s`."""
    return rate(hertz).replace("times/s", f"{what}/s")


def rate(hertz: float) -> str:
    """`320 times/s`, `2.5 times/s`, `0.07 times/s`."""
    digits = 0 if hertz >= 20 else 1 if hertz >= 1 else 2
    return f"{number(hertz, digits)} times/s"


def seconds(value: float) -> str:
    """`0.3 s`, `12 s`, `10 min`."""
    if value >= 120:
        return f"{value / 60:.0f} min"
    return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s"


def in_sql(event: ScheduledEvent) -> str:
    """An event as it stands in a statement, whatever is in its name."""
    return event.name if event.database is None or event.event is None else shown(event.database, event.event)


def tries_of(event: ScheduledEvent) -> list[LiveRemedy]:
    """That it can be disabled for a while."""
    if event.database is None or event.event is None:
        return []
    return [LiveRemedy(database=event.database, event=event.event)]


def try_line(evidence: Evidence, rule: str) -> str:
    """The command that tries the first remedy of a finding."""
    whom = evidence.pid if evidence.pid is not None else "mysqld"
    return f"to try it live: powerprof cure --pid {whom} --finding {rule}"


def stack_of(rows: Sequence[ThreadWakeups]) -> list[str]:
    """The stack that most of these wake-ups came from, innermost first, without the arguments of C++ functions.

    Wakings decide where they were counted: a client on the same CPU ends the idle period itself, so that few idle
    exits fall on the thread it wakes, and by chance on another place than where that thread waits.
    """
    with_stack = [row for row in rows if row.stack]
    if not with_stack:
        return []
    most = max(with_stack, key=lambda row: (row.wakings_hz or 0.0, row.rate_hz))
    return [frame.partition("(")[0] or frame for frame in most.stack[:_SHOWN]]


# MySQL 8.0.22 renamed its statements and columns, and 8.4 has only the new ones.
_SINCE = (8, 0, 23)
_NEW = (
    ("SHOW SLAVE STATUS (SHOW REPLICA STATUS)", "SHOW REPLICA STATUS"),
    ("SHOW SLAVE HOSTS", "SHOW REPLICAS"),
    ("CHANGE MASTER TO MASTER_", "CHANGE REPLICATION SOURCE TO SOURCE_"),
    ("CHANGE MASTER TO", "CHANGE REPLICATION SOURCE TO"),
    *((f"{verb} SLAVE", f"{verb} REPLICA") for verb in ("START", "STOP", "RESET", "SHOW")),
    ("Slave_SQL_Running", "Replica_SQL_Running"),
    ("Slave_IO_Running", "Replica_IO_Running"),
    ("Seconds_Behind_Master", "Seconds_Behind_Source"),
)


def has_new_words(version: str) -> bool:
    """Whether that server (`MySQL 9.7.4`) calls a slave a replica."""
    product, _, number = version.partition(" ")
    parts = tuple(int(part) for part in number.split(".") if part.isdigit())
    return product == "MySQL" and parts >= _SINCE


def in_new_words(text: str) -> str:
    """Statements and columns as such a server knows them."""
    for old, new in _NEW:
        text = text.replace(old, new)
    return text
