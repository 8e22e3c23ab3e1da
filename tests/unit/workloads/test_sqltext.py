# SPDX-License-Identifier: Apache-2.0
"""Statements are split as the client splits them."""

from __future__ import annotations

import pytest

from powerprof.workloads.reading import split_statements
from tests.programs.cpu_time import least_cpu_s


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("SELECT 1; SELECT 2", ["SELECT 1", "SELECT 2"]),
        ("SELECT ';' ;", ["SELECT ';'"]),
        ("SELECT 'it''s; \\'x;' ; SELECT \"a;b\"", ["SELECT 'it''s; \\'x;'", 'SELECT "a;b"']),
        ("SELECT `a;b` FROM t;", ["SELECT `a;b` FROM t"]),
        ("-- one; two\nSELECT 1; # three;\nSELECT 2;", ["SELECT 1", "SELECT 2"]),
        ("SELECT 1 /* a; b */ + 1;", ["SELECT 1   + 1"]),
        ("/*!40101 SET NAMES utf8 */;", ["/*!40101 SET NAMES utf8 */"]),
        ("SELECT 5--1;", ["SELECT 5--1"]),
        ("delimiter //\nBEGIN; SELECT 1; END//\ndelimiter ;\nSELECT 2;", ["BEGIN; SELECT 1; END", "SELECT 2"]),
        (" \n;;-- nothing\n", []),
    ],
)
def test_statements_are_split_like_the_mariadb_client(text: str, statements: list[str]) -> None:
    assert split_statements(text) == statements


@pytest.mark.parametrize(
    "text",
    [
        "\n" * 400_000,
        "/*" * 200_000,
        "'\"" * 200_000,
        "'\\" * 200_000,
        "'" * 400_001,
        " \t" * 200_000 + "delimiter",
        "delimiter " + "x" * 400_000 + " y",
        "-- \n" * 100_000,
        "\n /*" * 100_000,
    ],
    ids=lambda text: repr(text[:12]),
)
def test_splitting_takes_linear_time(text: str) -> None:
    assert least_cpu_s(lambda: split_statements(text), 1.0) < 1.0
