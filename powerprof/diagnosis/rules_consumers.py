# SPDX-License-Identifier: Apache-2.0
"""The rule on CPU time: a statement, client, process or thread that has most of the server's CPU time is the answer."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from powerprof.diagnosis.consumers import (
    Consumer,
    describe_consumer,
    find_largest_consumer,
    find_statement,
    join_since,
    list_connections,
    list_stops,
)
from powerprof.diagnosis.evidence import SQL_FAMILIES, Evidence, Finding, StatementCpu
from powerprof.diagnosis.rules_replication import find_role
from powerprof.diagnosis.statement_window import describe_use
from powerprof.diagnosis.wording import format_rate, format_role_change, format_seconds, next_command, shorten_statement
from powerprof.model.text import number

# A kind of work is a reason if it has this share of a statement's samples, or happens in this share of its calls.
_KIND_PERCENT, _KIND_CALLS = 25.0, 0.5
_MANY_ROWS = 10_000
_SHOWN_OTHERS = 3


class _Role(msgspec.Struct, frozen=True):
    """A kind of thread or process, by a part of its name, with its task and its remedies. `{pid}` is its process."""

    pattern: str
    does: str
    remedy: tuple[str, ...]


_ROLES = (
    _Role(
        "walsender",
        "sends changes to a standby or subscriber",
        (
            "who reads: SELECT * FROM pg_stat_replication, and its slot: SELECT * FROM pg_replication_slots",
            "a logical walsender decodes every change of its database: read it by one slot, publish fewer tables, or "
            "divide large transactions",
            "to stop it now: SELECT pg_catalog.pg_terminate_backend({pid}), with its subscription disabled",
        ),
    ),
    _Role(
        "autovacuum worker",
        "removes old row versions and computes statistics",
        (
            "which table: SELECT * FROM pg_stat_progress_vacuum, or log_autovacuum_min_duration = 0",
            "slower: a longer autovacuum_vacuum_cost_delay; less often: a longer autovacuum_naptime, or higher "
            "autovacuum_vacuum_scale_factor and autovacuum_vacuum_threshold of that table",
            "fewer old versions: HOT updates (a lower fillfactor, no index on columns that change)",
        ),
    ),
    _Role(
        "replica SQL thread|slave_sql|slave_worker|replica_sql|replica_worker|rpl_parallel",
        "applies changes from the source",
        (
            "a table without a primary key is scanned for each changed row: SELECT t.TABLE_SCHEMA, t.TABLE_NAME FROM "
            "information_schema.TABLES t LEFT JOIN information_schema.STATISTICS s ON s.TABLE_SCHEMA = t.TABLE_SCHEMA "
            "AND s.TABLE_NAME = t.TABLE_NAME AND s.INDEX_NAME = 'PRIMARY' WHERE t.TABLE_TYPE = 'BASE TABLE' AND "
            "s.INDEX_NAME IS NULL",
            "fewer or smaller changes on the source; to stop it now: STOP SLAVE SQL_THREAD",
        ),
    ),
    _Role(
        "dump thread|feeds a replica",
        "sends the binary log to a replica",
        ("which replica: SHOW PROCESSLIST (Binlog Dump), SHOW SLAVE HOSTS",),
    ),
    _Role(
        "event_worker",
        "executes an event of the event scheduler",
        ("which event: SELECT * FROM information_schema.EVENTS; give it a longer interval",),
    ),
    _Role(
        "purge|page_cleaner|innodb/thread_pool|checkpointer|background writer|walwriter",
        "cleans up and writes the changes of clients",
        ("fewer or larger transactions of clients cause less of this work",),
    ),
)


def find_main_consumer(evidence: Evidence, faults: Sequence[Finding] = ()) -> list[Finding]:
    """Find the part with most of the server's CPU time, unless one of the `faults` is about it already."""
    consumer = find_largest_consumer(evidence)
    if consumer is None or not consumer.is_main or any(_is_about(fault, consumer) for fault in faults):
        return []
    text, remedy = _describe_main(consumer, evidence)
    return [
        Finding(
            rule="main_consumer",
            severity="fault",
            text=text,
            evidence=_list_evidence(consumer, evidence),
            remedy=remedy,
            rate_hz=None if consumer.use is None else consumer.use.calls_hz,
            percent=consumer.percent,
            account=consumer.account,
        )
    ]


def _is_about(fault: Finding, consumer: Consumer) -> bool:
    """Return whether a fault explains the CPU time of a consumer."""
    if fault.percent is not None:
        return fault.percent >= 0.5 * consumer.percent
    is_replication = find_role(consumer.name, ()) is not None or consumer.name.startswith("logical replication")
    return is_replication and fault.rule in ("orphan_event", "duplicate_server_id", "restarted_worker")


def _describe_main(consumer: Consumer, evidence: Evidence) -> tuple[str, list[str]]:
    """Return the sentences and the remedies."""
    stops = list_stops(evidence, consumer.account, consumer.percent)
    all_statements = f"all statements: {next_command(evidence, 'queries')}"
    who = consumer.account or "A client"
    since = join_since(list_connections(evidence, consumer.account))
    if consumer.kind == "statement" and consumer.use is not None:
        rate = "" if consumer.use.calls_hz is None else f" {format_rate(consumer.use.calls_hz)}"
        works, remedies = describe_work(consumer.use, evidence)
        kept = _describe_transactions(evidence)
        sentences = [f"{who} sends {consumer.name}{rate}{since}.", f"It uses {consumer.share_text}.", *works, *kept]
        return " ".join(sentences), [*remedies, *_list_transaction_stops(evidence), *stops, all_statements]
    if consumer.kind == "account":
        return f"{who} uses {consumer.share_text} with several statements{since}.", [*stops, all_statements]
    if consumer.kind == "connection":
        sent = find_statement(evidence, consumer.thread)
        does = f"executes {shorten_statement(sent)}" if sent else "executes statements"
        return f"{who} {does}{since}. It uses {consumer.share_text}.", [*stops, all_statements]
    if consumer.kind == "connecting" and consumer.account is None:
        text = f"Threads that start and end again use {consumer.share_text}."
        return text, [all_statements, f"to see the functions: {next_command(evidence, 'profile')}"]
    if consumer.kind == "connecting":
        text = f"{consumer.account} opens and closes connections again and again: this uses {consumer.share_text}."
        return text, ["Keep the connections open, or use a pool", all_statements]
    return _describe_role(consumer, evidence)


def _describe_role(consumer: Consumer, evidence: Evidence) -> tuple[str, list[str]]:
    thread = consumer.thread
    known_name = find_role(f"thread/{consumer.name}", ())
    role = next((role for role in _ROLES if re.search(role.pattern, known_name or consumer.name)), None)
    age = "" if thread is None or thread.age_s is None else f", running for {format_seconds(thread.age_s)}"
    remedies = [line.format(pid="PID" if thread is None else thread.tid) for line in role.remedy] if role else []
    remedies.append(f"to see the functions: {next_command(evidence, 'profile')}")
    does = f", which {role.does}," if role is not None else ""
    if consumer.threads_count > 1:
        count = consumer.threads_count
        subject = f"{count} threads {consumer.name}{f' ({role.does})' if role else ''} use"
    elif known_name is not None:
        subject = f"The {known_name} ({consumer.name}){does} uses"
    elif role is not None:
        subject = f"The {consumer.name}{does} uses"
    else:
        subject = f"The thread {consumer.name}{'' if thread is None else f' ({thread.tid})'} uses"
    is_server = evidence.family in SQL_FAMILIES or evidence.starts_span_s is not None
    of = "" if is_server else f" {evidence.version}:"
    return f"{of} {subject} {consumer.share_text}{age}.".strip(), remedies


def describe_work(use: StatementCpu, evidence: Evidence) -> tuple[list[str], list[str]]:
    """Return the kinds of work of a statement as sentences, and their remedies.

    PostgreSQL shows them by stacks. MariaDB and MySQL count them for the whole server, which is mostly this statement.
    """
    # A statement that lasts longer than the window is one call.
    calls = max(1.0, (use.calls_hz or 0.0) * evidence.window_s)
    sentences, remedies = [], []
    if (use.jit_percent or 0.0) >= _KIND_PERCENT:
        sentences.append(f"JIT compilation is {number(use.jit_percent, 0)} % of its CPU time.")
        remedies.append(f"without JIT for this account: {format_role_change(use.account, 'jit', 'off')}")
        remedies.append("for costlier statements alone: a higher jit_above_cost (100000 by default)")
    if (use.sort_percent or 0.0) >= _KIND_PERCENT:
        sentences.append(f"Sorting is {number(use.sort_percent, 0)} % of its CPU time.")
        remedies.append("an index in the order of ORDER BY avoids the sort")
    if evidence.count_increase("Created_tmp_disk_tables") >= _KIND_CALLS * calls:
        sentences.append("It writes a temporary table to disk.")
        remedies.append("larger tmp_table_size and max_heap_table_size, or an index for GROUP BY or DISTINCT")
    if evidence.count_increase("Sort_rows") >= _MANY_ROWS * calls:
        rows = number(evidence.count_increase("Sort_rows") / calls, 0)
        sentences.append(f"It sorts {rows} rows.")
        remedies.append("an index in the order of ORDER BY avoids the sort")
    return sentences, remedies


def _describe_transactions(evidence: Evidence) -> list[str]:
    if not evidence.open_transactions:
        return []
    first, *others = evidence.open_transactions
    more = f", and {len(others)} more" if others else ""
    return [
        f"A transaction of {first.account}, open and idle for at least {format_seconds(first.open_s)}{more}, keeps old "
        "row versions for it to pass."
    ]


def _list_transaction_stops(evidence: Evidence) -> list[str]:
    lines = []
    for transaction in evidence.open_transactions[:1]:
        stop = (
            f"KILL {transaction.connection}"
            if evidence.family in SQL_FAMILIES
            else f"SELECT pg_catalog.pg_terminate_backend({transaction.connection})"
        )
        limit = "idle_transaction_timeout" if evidence.family == "mariadb" else "idle_in_transaction_session_timeout"
        lines.append(
            f"to end the idle transaction: {stop}" + ("" if evidence.family == "mysql" else f"; {limit} limits it")
        )
    return lines


def _list_evidence(consumer: Consumer, evidence: Evidence) -> list[str]:
    window = evidence.statement_window
    lines = []
    if consumer.use is not None and len(consumer.use.text) > len(consumer.name):
        lines.append(describe_use(consumer.use, evidence))
    if evidence.cpu_percent is not None:
        lines.append(f"the server used {number(evidence.cpu_percent, 1)} % of one CPU for {evidence.window_s:.1f} s")
    if window is not None:
        lines.append(f"and {number(window.percent, 1)} % of one CPU in the {window.window_s:.1f} s after it")
        others = [use for use in window.statements if use is not consumer.use and use.percent >= 1.0]
        lines += [describe_use(use, evidence) for use in others[:_SHOWN_OTHERS]]
    if consumer.kind in ("role", "connection") and not lines:
        lines.append(describe_consumer(consumer))
    return lines
