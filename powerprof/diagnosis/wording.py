# SPDX-License-Identifier: Apache-2.0
"""The words that rules share: rates, durations, names, and commands of powerprof for the inspected server."""

from __future__ import annotations

import re
from collections.abc import Sequence

from powerprof.diagnosis.evidence import Evidence, ScheduledEvent, ThreadWakeups
from powerprof.diagnosis.postgres_evidence import format_setting
from powerprof.model.text import number
from powerprof.system.foreign_text import printable
from powerprof.system.next_steps import command_line

_COLUMNS = re.compile(r"(SELECT\s+.{1,20}?)[\s,(].{20,}?\s(FROM\s.*)", re.IGNORECASE | re.DOTALL)


def format_event_rate(hertz: float, what: str) -> str:
    """Return a rate of named events: `320 connections/s`, `2.5 idle periods/s`."""
    return format_rate(hertz).replace("times/s", f"{what}/s")


def format_rate(hertz: float) -> str:
    """Return a rate: `320 times/s`, `2.5 times/s`, `0.07 times/s`."""
    digits = 0 if hertz >= 20 else 1 if hertz >= 1 else 2
    return f"{number(hertz, digits)} times/s"


def format_seconds(value: float) -> str:
    """Return a duration: `0.3 s`, `12 s`, `10 min`."""
    if value >= 120:
        return f"{value / 60:.0f} min"
    return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s"


def format_share(percent: float, whole_percent: float | None) -> str:
    """Return a part of the server's CPU time as a share of it and in percent of one CPU."""
    one = f"{number(percent, 0 if percent >= 10 else 1)} % of one CPU"
    if not whole_percent:
        return one
    return f"{number(100.0 * min(1.0, percent / whole_percent), 0)} % of this server's CPU time ({one})"


def shorten_statement(statement: str, width: int = 80) -> str:
    """Return the text of a statement for a sentence: of a long list of columns the beginning, and the tables."""
    if len(statement) <= width:
        return statement
    listed = _COLUMNS.match(statement)
    short = f"{listed[1]} … {listed[2]}" if listed is not None else statement
    return short if len(short) <= width else f"{short[: width - 1].rstrip()}…"


def quote_event(event: ScheduledEvent) -> str:
    """Return the quoted name of an event for an SQL statement."""
    if event.database is None or event.event is None:
        return event.name
    return printable(".".join(f"`{name.replace('`', '``')}`" for name in (event.database, event.event)))


def format_change(name: str, value: str) -> str:
    """Return the statements that change a setting of PostgreSQL without a restart."""
    return f"ALTER SYSTEM SET {name} TO '{value}'; SELECT pg_catalog.pg_reload_conf()"


def format_role_change(account: str | None, name: str, value: str) -> str:
    """Return the statement that changes a setting of PostgreSQL for the sessions of an account (`user@host`)."""
    role = (account or "").rpartition("@")[0] or "NAME"
    return f"ALTER ROLE {quote_identifier(role)} SET {name} = {value}"


def describe_settings(evidence: Evidence, *names: str) -> str:
    """Return the known settings of PostgreSQL with their values: `work_mem is 4 MB`; empty without any."""
    known = [
        f"{name} is {format_setting(name, evidence.variables[name])}" for name in names if name in evidence.variables
    ]
    return ", ".join(known)


def quote_identifier(name: str) -> str:
    """Return a name in an SQL statement of PostgreSQL."""
    return '"' + name.replace('"', '""') + '"'


def next_command(evidence: Evidence, command: str, *options: object) -> str:
    """Return a command of powerprof for the inspected server."""
    target = [] if evidence.pid is None else ["--pid", str(evidence.pid)]
    words = [command, *target, *map(str, options)]
    return command_line("{}", words, same_target=evidence.pid is None)


def describe_live_try(evidence: Evidence, rule: str) -> str:
    """Return the command that tries the first remedy of a finding."""
    return f"to try it live: {next_command(evidence, 'cure', '--finding', rule)}"


def select_stack(rows: Sequence[ThreadWakeups]) -> list[str]:
    """Return the stack of the most frequent row, innermost function first, without the arguments of C++ functions.

    Counted wakings rank before idle exits. A client on the same CPU ends the idle period itself, so few idle exits
    are attributed to the thread that it wakes, and their stacks are a matter of chance.
    """
    with_stack = [row for row in rows if row.stack]
    if not with_stack:
        return []
    most = max(with_stack, key=lambda row: (row.wakings_hz or 0.0, row.rate_hz))
    return [frame.partition("(")[0] or frame for frame in most.stack[:16]]


# MySQL 8.0.22 renamed its statements and columns. Version 8.4 accepts only the new names.
_REPLICA_TERMS_SINCE = (8, 0, 23)
_REPLICA_TERMS = (
    ("SHOW SLAVE STATUS (SHOW REPLICA STATUS)", "SHOW REPLICA STATUS"),
    ("SHOW SLAVE HOSTS", "SHOW REPLICAS"),
    ("CHANGE MASTER TO MASTER_", "CHANGE REPLICATION SOURCE TO SOURCE_"),
    ("CHANGE MASTER TO", "CHANGE REPLICATION SOURCE TO"),
    *((f"{verb} SLAVE", f"{verb} REPLICA") for verb in ("START", "STOP", "RESET", "SHOW")),
    ("Slave_SQL_Running", "Replica_SQL_Running"),
    ("Slave_IO_Running", "Replica_IO_Running"),
    ("Seconds_Behind_Master", "Seconds_Behind_Source"),
)


def has_replica_terms(version: str) -> bool:
    """Return whether this version (`MySQL 9.7.4`) uses the term replica for a slave."""
    product, _, release = version.partition(" ")
    parts = tuple(int(part) for part in release.split(".") if part.isdigit())
    return product == "MySQL" and parts >= _REPLICA_TERMS_SINCE


def use_replica_terms(text: str) -> str:
    """Return the text with the current names of statements and columns."""
    for old, new in _REPLICA_TERMS:
        text = text.replace(old, new)
    return text
