# SPDX-License-Identifier: Apache-2.0
"""Whole texts that clients sent, with their values: only for who consented, and never saved with a run."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from powerprof.database.clients.base import Login, StatementError
from powerprof.database.clients.readers import ReadOnlyAccount, explain, read_only_login
from powerprof.queries.join import UNKNOWN_PREPARED, is_own_statement
from powerprof.queries.records import QueryPlanStep, Statement
from powerprof.statements.text import make_key
from powerprof.system.errors import PowerprofError, UsageError
from powerprof.system.files import printable
from powerprof.tracing.bpf.shared_numbers import COM_QUERY
from powerprof.tracing.captures import RecordedText
from powerprof.tracing.statement_places import TEXT_BYTES

_READS = re.compile(r"\(*(SELECT|WITH)\b", re.IGNORECASE)
_NAMED = 5
_EXECUTES = re.compile(r"EXECUTE\b", re.IGNORECASE)
_PREPARED = "prepared: its values are not in its text, and others could have another plan"
# Servers execute what stands in such a comment (MariaDB: also /*M!).
_EXECUTED = re.compile(r"/\*M?!", re.IGNORECASE)
# Words of statements that write, lock or wait, and functions that change something.
_ACTS = re.compile(
    r"\b(into|insert|update|delete|replace|truncate|drop|alter|create|grant|revoke|set|call|do|handler|procedure|lock|share"
    r"|setval|nextval|lastval|next\s+value|load_file|get_lock|release_lock|release_all_locks|is_free_lock|sleep"
    r"|master_pos_wait|master_gtid_wait|wait_for_executed_gtid_set|source_pos_wait)\b|:=|;\s*\S",
    re.IGNORECASE,
)
_FUNCTIONS = re.compile(r"\b(replace|insert)\s*\(", re.IGNORECASE)
# Where one of these stands, what is quoted depends on the server's mode and character set, or on where a comment ends.
_UNCLEAR = re.compile(r"\\|--|#|/\*|[^\x00-\x7f]")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`")
_REFUSED = {
    1044: "it reads another schema",
    1142: "it reads another schema",
    1143: "it reads another schema",
    1345: "it reads a view",
    1370: "it calls a stored function",
    1356: "it reads a view",
}


@dataclass(frozen=True)
class StatementSample:
    """A statement of the record with a text of it as a client sent it."""

    number: int
    statement: Statement
    text: str


def choose_texts(
    seen_texts: Iterable[RecordedText], statements: Sequence[Statement], most: int
) -> list[StatementSample]:
    """Of the first statements those that only read, and whose text is whole and has its values."""
    texts: dict[str, str] = {}
    for seen in seen_texts:
        if seen.command == COM_QUERY and seen.length < TEXT_BYTES:
            text = seen.text.decode("utf-8", "replace")
            name = make_key(text)
            if (
                _READS.match(name)
                and not is_own_statement(name)
                and only_reads(text)
                and "?" not in text
                and "\ufffd" not in text
            ):
                texts.setdefault(name, text)
    chosen = [
        StatementSample(number, statement, texts[make_key(statement.text)])
        for number, statement in enumerate(statements)
        if make_key(statement.text) in texts and not statement.began_before
    ]
    return chosen[:most]


LeftOutStatements = dict[str, list[Statement]]
"""Statements of which there is no text to use, by the reason."""


def explain_left_out(
    seen_texts: Iterable[RecordedText], statements: Sequence[Statement], chosen: Sequence[StatementSample]
) -> LeftOutStatements:
    """Why the others of `statements` are not among the chosen. Commands and our own questions need no reason."""
    raw: dict[str, RecordedText] = {}
    for seen in seen_texts:
        if seen.command == COM_QUERY and not seen.prepared_number:
            raw.setdefault(make_key(seen.text.decode("utf-8", "replace")), seen)
    taken = {sample.number for sample in chosen}
    reasons: LeftOutStatements = {}
    for number, statement in enumerate(statements):
        if number not in taken and not statement.began_before:
            reason = _reason(statement.text, raw.get(make_key(statement.text)))
            if reason is not None:
                reasons.setdefault(reason, []).append(statement)
    return reasons


def _reason(text: str, seen: RecordedText | None) -> str | None:
    if text == UNKNOWN_PREPARED:
        return "prepared before the window, its text is unknown"
    if text.startswith("(event "):
        return "an event executes it"
    if text.startswith("(") and not _READS.match(text):
        return None  # a command, preparing, a question of ours
    if _EXECUTES.match(text):
        return _PREPARED
    if not _READS.match(text):
        return "it does more than read"
    if seen is None:
        return "no text with its values was seen: prepared before the window, or executed within a procedure"
    if seen.length >= TEXT_BYTES:
        return f"its text has {TEXT_BYTES:,} bytes or more"
    decoded = seen.text.decode("utf-8", "replace")
    if "?" in decoded:
        return _PREPARED
    return "its text is not UTF-8" if "\ufffd" in decoded else "it may do more than read"


def list_missing_plans(reasons: LeftOutStatements) -> list[str]:
    """A sentence a reason, with the ids of its statements."""
    sentences = []
    for reason, statements in reasons.items():
        ids = ", ".join(f"#{statement.id}" for statement in statements[:_NAMED])
        more = f" and {len(statements) - _NAMED:,} more" if len(statements) > _NAMED else ""
        sentences.append(f"no plan of {ids}{more}: {reason}")
    return sentences


def only_reads(text: str) -> bool:
    """Whether no word of the text could be one that does more than read, however the server takes its quotes.

    It is not what keeps such a text from doing more: the account is under which it is explained and executed.
    """
    if _EXECUTED.search(text):
        return False
    plain = text if _UNCLEAR.search(text) else _QUOTED.sub("''", text)
    return not _ACTS.search(_FUNCTIONS.sub("(", plain))


def add_plans(
    statements: Sequence[Statement], chosen: Sequence[StatementSample], login: Login, explain_as: Path | None = None
) -> tuple[list[Statement], list[str]]:
    """The statements with the plans of the chosen ones, and what could not be explained.

    Plans are made by an account that only reads: the one in `explain_as`, else one per schema that `login` makes. A
    single account for all schemas would explain to the sender of a text the tables that the sender may not read.
    """
    planned, notes = list(statements), list[str]()
    if not chosen:
        return planned, notes
    try:
        if explain_as is not None:
            _plan(planned, notes, chosen, read_only_login(login, explain_as))
        else:
            for schema in dict.fromkeys(sample.statement.schema_name for sample in chosen):
                own = [sample for sample in chosen if sample.statement.schema_name == schema]
                with ReadOnlyAccount(login, schema) as reader:
                    _plan(planned, notes, own, reader.login)
    except PowerprofError as error:
        notes.append(f"plans: {error.message}")
        if error.hint:
            notes.append(f"plans: {error.hint}")
    return planned, notes


def _plan(planned: list[Statement], notes: list[str], chosen: Sequence[StatementSample], reader: Login) -> None:
    for sample in chosen:
        try:
            steps = explain(reader, sample.text, sample.statement.schema_name)
        except StatementError as error:
            # Not in the server's words: they quote the text with its values.
            reason = _REFUSED.get(error.number, f"the server refused it, error {error.number}")
            notes.append(f"no plan of {sample.statement.text[:60]}: {reason}")
            continue
        plan = [
            QueryPlanStep(table=s.table, access=s.access, key=s.key, rows_count=s.rows, extra=s.extra) for s in steps
        ]
        planned[sample.number] = msgspec.structs.replace(planned[sample.number], plan=plan)


# A workload.toml made of statements that a server executed, for `compare` after somebody has changed something.

_MOST_SLOTS, _MOST_SHOWN = 200, 120
_ELSEWHERE = "in another schema than the workload's"
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


def check_workload_name(name: str) -> None:
    """Raises UsageError for a folder that no workload can be called by."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"--save-workload: no workload can be called {name[:60]!r}",
            "a folder's name of lower case letters, digits and -, such as ./slow-orders",
        )


def format_workload(
    name: str, label: str, samples: Sequence[StatementSample], clients: int, others: LeftOutStatements | None = None
) -> str:
    """The text of workload.toml; `others` are named in it with the reason why they are not its. Raises PowerprofError
    where there is nothing to put into it."""
    usable = [sample for sample in samples if "{{" not in sample.text]
    if not usable:
        raise PowerprofError(
            "no statement for a workload: none only reads and was seen whole, with its values",
            "a longer --duration, or write one (docs/how-to/write-a-workload.md)",
        )
    schema = Counter(sample.statement.schema_name for sample in usable).most_common(1)[0][0]
    missing = {**(others or {}), _ELSEWHERE: [one.statement for one in usable if one.statement.schema_name != schema]}
    usable = [sample for sample in usable if sample.statement.schema_name == schema]
    rate = sum(sample.statement.calls_hz or 0.0 for sample in usable)
    texts = "".join(f"  {_text(sample.text)},\n" for sample in interleave_by_rate(usable))
    database = f"database = {_text(schema)}\n" if schema else "# database = the schema of these statements\n"
    return f"""schema = "powerprof.workload/1"
name = {_text(name)}
title = {_text(f"Statements of {label}")}
description = \"\"\"
{len(usable)} statements as clients sent them, with their values, each as often
as it was seen beside the others. Change something for the second condition (a table
with an index, another statement), then: powerprof compare as-is changed --workloads DIR --socket PATH\"\"\"

# The tables are those of the server that --socket or --server names. For a private server put their SQL into files:
# [dataset]
# kind = "sql"
# files = ["tables.sql"]
[dataset]
kind = "none"

[load]
{database}sql = [
{texts}]
{_comments(missing)}clients = {max(1, min(clients, 64))}
rate_hz = {max(rate, 0.1):.6g}
# On a server of yours these run under an account that may only SELECT, made for it and dropped afterwards.
reads_only = true

[conditions.as-is]
title = "as the server executes them now"

[conditions.changed]
title = "after the change: put it here"
# setup = [
#   "CREATE TABLE t_indexed LIKE t", "INSERT INTO t_indexed SELECT * FROM t", "ALTER TABLE t_indexed ADD INDEX (c)",
# ]
# load.sql = ["the statements on t_indexed"]
"""  # noqa: S608  it is written for a person to read and change, not executed here


def _comments(missing: LeftOutStatements) -> str:
    """A line for each statement that is not in the workload, without its values."""
    lines = []
    for reason, statements in missing.items():
        for statement in statements:
            share = "" if statement.c0_percent is None else f", {statement.c0_percent:.1f} % of the server's CPU time"
            shown = printable(" ".join(statement.text.split()))[:_MOST_SHOWN]
            lines.append(f"# left out: {shown} (#{statement.id}{share}): {reason}\n")
    return "".join(lines)


def interleave_by_rate(samples: Sequence[StatementSample]) -> list[StatementSample]:
    """Each as often as its rate is to the others', spread evenly; the rarest at least once."""
    rates = [sample.statement.calls_hz or 0.0 for sample in samples]
    total, least = sum(rates), min((rate for rate in rates if rate > 0), default=0.0)
    if not total or not least:
        return list(samples)
    slots = min(total / least, _MOST_SLOTS)
    places = []
    for number, (sample, rate) in enumerate(zip(samples, rates, strict=True)):
        times = max(round(slots * rate / total), 1)
        places += [((turn + 0.5) / times, number, sample) for turn in range(times)]
    return [sample for _, _, sample in sorted(places, key=lambda place: place[:2])]


def _text(value: str) -> str:
    """A basic string of TOML, whose escapes are JSON's."""
    return json.dumps(value)
