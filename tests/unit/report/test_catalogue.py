# SPDX-License-Identifier: Apache-2.0
"""Tests for the report of symbol files, and for notes that name the command for missing names."""

from __future__ import annotations

import msgspec

from powerprof.attribution.symbols import SymbolFile, Symbols
from powerprof.model.records import Note
from powerprof.report.catalogue import symbols_lines
from powerprof.report.labels import word_notes, wrap_note

COMMAND = "DEBUGINFOD_URLS=https://debuginfod.debian.net powerprof doctor --pid 123456 --fetch"
FILE = SymbolFile(
    path="/usr/sbin/mariadbd",
    module="mariadbd",
    build_id="ab" * 20,
    names_from="dynsym",
    debug_from=None,
    functions_count=35492,
    named_count=19065,
    wakeups_percent=90.0,
    unnamed_wakeups_percent=80.0,
    package="mariadb-server-core-dbgsym=1:10.11",
    note=None,
)
RECORD = Symbols(
    label="mariadbd", pids=[7], files=[FILE], wakeups_count=1000, wakeups_named_percent=20.0, command=COMMAND
)


def test_answer_is_the_named_share_and_the_command_is_one_line() -> None:
    printed = symbols_lines(RECORD, 60)
    assert printed[:2] == [
        "20.0 % of 1,000 wake-ups of mariadbd have a function name;",
        "symbols are complete in 0 of 1 file.",
    ]
    assert any("19,065 of 35,492" in line and "80.0 %" in line for line in printed)
    assert printed[-1] == f"  {COMMAND}"


def test_untraced_symbols_have_no_wakeup_figures() -> None:
    file = msgspec.structs.replace(FILE, wakeups_percent=None, unnamed_wakeups_percent=None, package=None)
    record = msgspec.structs.replace(RECORD, files=[file], wakeups_count=None, wakeups_named_percent=None, command=None)
    printed = symbols_lines(record, 80)
    assert printed[0] == "Symbols of mariadbd are complete in 0 of 1 file."
    assert not any("wake-up" in line or "debug package" in line for line in printed)
    assert printed[-1] == "No known package or debuginfod server has the missing names."


def test_note_keeps_its_command_on_one_line() -> None:
    (text,) = word_notes([Note("names_missing", {"percent": 43.2, "files": "mariadbd", "command": COMMAND})])
    printed = wrap_note(text, 40)
    assert printed[-1] == f"  {COMMAND}"
    assert " ".join(printed[:-1]) == (
        "Note: 43 % of the frames have no name, in mariadbd: these files are stripped. To get the names:"
    )
    assert wrap_note("plain", 40) == ["Note: plain."]
