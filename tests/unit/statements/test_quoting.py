# SPDX-License-Identifier: Apache-2.0
"""Values of clients that a server reads otherwise than the usual one are in no text that is kept."""

from __future__ import annotations

import pytest

from powerprof.database.clients.performance import ServerReport
from powerprof.queries.join import join_trace
from powerprof.statements.text import Family, normalise, replace_strings
from powerprof.tracing.captures import RecordedText, StatementUse
from tests.unit.queries.sample import trace

HOSTILE: list[tuple[Family, bytes]] = [
    # SJIS: the second byte of the character is a backslash, or a backtick.
    ("mysql", b"SELECT '\x95\x5c', 'secret'"),
    ("mysql", b"SELECT '\x83\x60', 'secret', '\x83\x60'"),
    ("mysql", b"SELECT '\x95\x5c', 'secret', '\x95\x5c'"),
    # NO_BACKSLASH_ESCAPES
    ("mysql", b"SELECT '\\', 'secret'"),
    ("mysql", b"SELECT '\\', 'secret', '\\', \"secret\""),
    ("mysql", b"SELECT 'it\\'s', 'secret'"),
    ("mysql", b"SELECT 'it\\'s secret"),
    # What a tokenizer takes for a comment, and the server does not; and the other way round.
    ("mysql", b"SELECT a--'x\n', 'secret'"),
    ("mysql", b"SELECT /*! '*/', 'secret' */"),
    ("mysql", b"SELECT /* /* */ 'a', 'secret' /* ' */"),
    ("mysql", b"SELECT 1 # ' \n, 'secret'"),
    ("mysql", b"SELECT 0x736563726574, x'736563726574'"),
    ("postgresql", b"SELECT E'it\\'s secret', 'secret'"),
    ("postgresql", b"SELECT E'\\\\', 'secret'"),
    ("postgresql", b"SELECT '\\', 'secret'"),
    ("postgresql", b"SELECT 'it\\'s secret'"),
    ("postgresql", b"SELECT $a$ $b$ ' secret $a$, 'secret'"),
    ("postgresql", b"SELECT /* /* */ ' */ 'secret'"),
    ("postgresql", b"SELECT $q$ secret"),
]


@pytest.mark.parametrize(("family", "text"), HOSTILE)
def test_no_value_is_kept(family: Family, text: bytes) -> None:
    taken = trace(
        uses=[StatementUse(300, 11, 10, 10_000, 1, 0, 0)], texts=[RecordedText(300, 3, len(text), text)], latencies={}
    )
    if family == "postgresql":
        kept = normalise(text.decode("utf-8", "surrogateescape"), family)
    else:
        (kept,) = (one.text for one in join_trace(taken, ServerReport()).statements)
    assert "secret" not in kept
    assert "736563726574" not in kept
    assert kept.startswith(("SELECT", "(statement 000000000000012c", "(not kept"))


CUT: list[tuple[Family, str]] = [
    ("mysql", "SELECT 'a\\', 'secret', 'cut"),
    ("mysql", "SELECT '\\', 'secret', \"cut"),
    ("mysql", "SELECT \"\\\", 'secret', 'secret', \"cut"),
    ("mysql", "SELECT /*! 'x' /* 'secret"),
    ("mysql", "SELECT 1 -- secret"),
    ("mysql", "CREATE USER u IDENTIFIED BY 'secret"),
    ("mysql", "SELECT 'sec'secret'"),
    ("postgresql", "SELECT 'a\\', 'secret', E'cut"),
    ("postgresql", "SELECT '\\', 'secret', 'cut"),
    ("postgresql", "COPY t TO PROGRAM 'secret"),
    ("postgresql", "CREATE SUBSCRIPTION s CONNECTION 'password=secret"),
]


@pytest.mark.parametrize(("family", "text"), CUT)
def test_a_text_that_is_cut_keeps_no_value_in_any_way_of_reading_it(family: Family, text: str) -> None:
    assert "secret" not in normalise(text, family, is_whole=False)


CLEAR: list[tuple[Family, str, str]] = [
    (
        "mysql",
        "SELECT a FROM t WHERE b = 'it\\'s' AND c = \"x\" -- end\n AND d = 1",
        "SELECT a FROM t WHERE b = ? AND c = ? AND d = ?",
    ),
    ("mysql", "SELECT a FROM t WHERE b = 'caf\u00e9' AND c = '\\\\'", "SELECT a FROM t WHERE b = ? AND c = ?"),
    ("mysql", "SELECT `a'b`, 'c' FROM t /* 'x */", "SELECT `a'b`, ? FROM t"),
    ("mysql", "SELECT a FROM t WHERE b = 'caf\udce9' AND d = 1", "SELECT a FROM t WHERE b = ? AND d = ?"),
    ("postgresql", "SELECT \"a'b\", 'c' FROM t WHERE x = E'\\''", 'SELECT "a\'b", ? FROM t WHERE x = ?'),
    ("postgresql", "SELECT $$it's$$ FROM t", "SELECT ? FROM t"),
]


@pytest.mark.parametrize(("family", "text", "kept"), CLEAR)
def test_a_text_that_is_clear_is_kept(family: Family, text: str, kept: str) -> None:
    assert normalise(text, family) == kept


def test_it_is_linear() -> None:
    """4,096 bytes of what makes a scanner go back; without a limit on steps each would take minutes."""
    for part in ("'\\", "/*", "`'", "$a$", "''", "/*!", "\udc95\\"):
        for family in ("mysql", "postgresql"):
            assert len(replace_strings(part * (4096 // len(part)), family)) <= 3 * 4096  # type: ignore[arg-type]
