# SPDX-License-Identifier: Apache-2.0
"""Whole texts of clients with their values, for plans and workloads: only with consent, and never saved with a run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from powerprof.database.base import Login, StatementError
from powerprof.database.plans import explain
from powerprof.database.readers import ReadOnlyAccount, read_only_login
from powerprof.model.identities import ANSI_BIT, Family
from powerprof.model.statement_strings import replace_strings
from powerprof.model.statements import make_key, normalise
from powerprof.queries.join import UNKNOWN_PREPARED, is_own_statement
from powerprof.queries.records import QueryPlanStep, Statement
from powerprof.system.errors import PowerprofError
from powerprof.tracing.bpf.shared_numbers import COM_QUERY
from powerprof.tracing.captures import RecordedText
from powerprof.tracing.statement_tables import TEXT_BYTES

_READS = re.compile(r"\(*(SELECT|WITH)\b", re.IGNORECASE)
_NAMED = 5
_EXECUTES = re.compile(r"EXECUTE\b", re.IGNORECASE)
_PREPARED = "prepared: its values are not in its text, and others could have another plan"
# Servers execute such comments (MariaDB: also /*M!).
_EXECUTED = re.compile(r"/\*M?!", re.IGNORECASE)
# Words of statements that write, lock or wait, and functions that change something.
_ACTS = re.compile(
    r"\b(into|insert|update|delete|replace|truncate|drop|alter|create|grant|revoke|set|call|do|handler|procedure|lock|share"
    r"|setval|nextval|lastval|next\s+value|load_file|get_lock|release_lock|release_all_locks|is_free_lock|sleep"
    r"|master_pos_wait|master_gtid_wait|wait_for_executed_gtid_set|source_pos_wait)\b|:=|;\s*\S",
    re.IGNORECASE,
)
_FUNCTIONS = re.compile(r"\b(replace|insert)\s*\(", re.IGNORECASE)
# With one of these, the quoted parts depend on the server's mode and character set, or on the end of a comment.
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


class StatementSample(msgspec.Struct, frozen=True):
    """A statement of the record with one of its texts as a client sent it."""

    number: int
    statement: Statement
    text: str


def choose_texts(
    seen_texts: Iterable[RecordedText], statements: Sequence[Statement], most: int, family: Family = "mysql"
) -> list[StatementSample]:
    """Return texts of the first statements that only read and whose text is complete.

    Texts of MariaDB and MySQL have their values. Those of PostgreSQL have no strings, and may have parameters.
    """
    texts: dict[str, str] = {}
    for seen in seen_texts:
        if seen.command == COM_QUERY and seen.length < TEXT_BYTES and not (seen.id & ANSI_BIT and b'"' in seen.text):
            text = seen.text.decode("utf-8", "replace")
            name = make_key(text, family)
            if family == "postgresql":
                text = replace_strings(text, family)
            if _READS.match(name) and not is_own_statement(name) and _is_usable(text, family):
                texts.setdefault(name, text)
    chosen = [
        StatementSample(number, statement, texts[key])
        for number, statement in enumerate(statements)
        if (key := make_key(statement.text, family)) in texts
    ]
    return chosen[:most]


def _is_usable(text: str, family: Family) -> bool:
    """Return whether a text only reads, is readable, and has its values if its server's plans need them."""
    return only_reads(text) and "\ufffd" not in text and (family == "postgresql" or "?" not in text)


LeftOutStatements = dict[str, list[Statement]]
"""Statements without a usable text, by the reason."""


def explain_left_out(
    seen_texts: Iterable[RecordedText],
    statements: Sequence[Statement],
    chosen: Sequence[StatementSample],
    family: Family = "mysql",
) -> LeftOutStatements:
    """Return the other statements by the reason for leaving them out.

    Commands and powerprof's own statements need none.
    """
    raw: dict[str, RecordedText] = {}
    for seen in seen_texts:
        if seen.command == COM_QUERY and not seen.prepared_number:
            text = normalise(seen.text.decode("utf-8", "replace"), family, ansi_quotes=bool(seen.id & ANSI_BIT))
            raw.setdefault(make_key(text, family), seen)
    taken = {sample.number for sample in chosen}
    reasons: LeftOutStatements = {}
    for number, statement in enumerate(statements):
        if number not in taken:
            reason = _explain(statement.text, raw.get(make_key(statement.text, family)), family)
            if reason is not None:
                reasons.setdefault(reason, []).append(statement)
    return reasons


def _explain(text: str, seen: RecordedText | None, family: Family) -> str | None:
    if text == UNKNOWN_PREPARED:
        return "prepared before the window, its text is unknown"
    if text.startswith("(event "):
        return "an event executes it"
    if text.startswith("(") and not _READS.match(text):
        return None  # a command, PREPARE, or a statement of powerprof
    if _EXECUTES.match(text):
        return _PREPARED
    if not _READS.match(text):
        return "it does more than read"
    if seen is None:
        if family == "postgresql":
            return "its whole text was not seen"
        return "no text with its values was seen: prepared before the window, or executed within a procedure"
    if seen.id & ANSI_BIT and b'"' in seen.text:
        return "its names are in double quotes, which mean strings without the client's ANSI_QUOTES"
    if seen.length >= TEXT_BYTES:
        return f"its text has {TEXT_BYTES:,} bytes or more"
    decoded = seen.text.decode("utf-8", "replace")
    if family == "mysql" and "?" in decoded:
        return _PREPARED
    return "its text is not UTF-8" if "\ufffd" in decoded else "it may do more than read"


def list_missing_plans(reasons: LeftOutStatements) -> list[str]:
    """Return one sentence per reason, with the ids of its statements."""
    sentences = []
    for reason, statements in reasons.items():
        ids = ", ".join(f"#{statement.id}" for statement in statements[:_NAMED])
        more = f" and {len(statements) - _NAMED:,} more" if len(statements) > _NAMED else ""
        sentences.append(f"no plan of {ids}{more}: {reason}")
    return sentences


def only_reads(text: str) -> bool:
    """Return whether every word of a text is harmless in any reading of its quotes.

    This is not the protection against statements that do more: the read-only account is.
    """
    if _EXECUTED.search(text):
        return False
    plain = text if _UNCLEAR.search(text) else _QUOTED.sub("''", text)
    return not _ACTS.search(_FUNCTIONS.sub("(", plain))


def add_plans(
    statements: Sequence[Statement], chosen: Sequence[StatementSample], login: Login, explain_as: Path | None = None
) -> tuple[list[Statement], list[str]]:
    """Return the statements with plans of the chosen texts, and the notes on missing plans.

    A read-only account makes the plans: the one in `explain_as`, else one per schema that `login` creates. One account
    for all schemas would show the sender of a text tables that the sender may not read. `login` to PostgreSQL is the
    read-only account itself (`target.find_reader`).
    """
    planned, notes = list(statements), list[str]()
    if not chosen:
        return planned, notes
    try:
        if login.family == "postgresql":
            _add_each_plan(planned, notes, chosen, login)
        elif explain_as is not None:
            _add_each_plan(planned, notes, chosen, read_only_login(login, explain_as))
        else:
            for schema in dict.fromkeys(sample.statement.schema_name for sample in chosen):
                own = [sample for sample in chosen if sample.statement.schema_name == schema]
                with ReadOnlyAccount(login, schema) as reader:
                    _add_each_plan(planned, notes, own, reader.login)
    except PowerprofError as error:
        notes.append(f"plans: {error.message}")
        if error.hint:
            notes.append(f"plans: {error.hint}")
    return planned, notes


def _add_each_plan(
    planned: list[Statement], notes: list[str], chosen: Sequence[StatementSample], reader: Login
) -> None:
    for sample in chosen:
        try:
            steps = explain(reader, sample.text, sample.statement.schema_name, _user_of(sample.statement))
        except StatementError as error:
            # The server's message is left out: it quotes the text with its values.
            reason = _REFUSED.get(error.number, f"the server refused it, error {error.number}")
            if reader.family == "postgresql":
                reason = error.message
            notes.append(f"no plan of {sample.statement.text[:60]}: {reason}")
            continue
        plan = [
            QueryPlanStep(table=s.table, access=s.access, key=s.key, rows_count=s.rows, extra=s.extra) for s in steps
        ]
        planned[sample.number] = msgspec.structs.replace(planned[sample.number], plan=plan)


def _user_of(statement: Statement) -> str | None:
    """Return the account that spent most CPU time on a statement, None if unknown."""
    return statement.askers[0].user if statement.askers else None
