# SPDX-License-Identifier: Apache-2.0
"""The transcripts of docs/read-a-report.md have the form that `make gallery` writes."""

from __future__ import annotations

import re

from tests.programs.transcripts import KEPT, PAGE, replaced, shortened


def test_every_answer_has_its_block_of_80_columns() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for command, kept in KEPT.items():
        (block,) = re.findall(rf"```console\n\$ sudo powerprof {re.escape(command)}\n(.*?)```", text, re.DOTALL)
        lines = block.splitlines()
        assert max(map(len, lines)) <= 80
        assert shortened([line for line in lines if line != "…"], kept) == lines


def test_what_is_left_out_is_marked() -> None:
    printed = ["It costs a lot,", "much.", "", "C0  1", "x", "C1  2"]
    assert shortened(printed, ("C", "C1")) == ["It costs a lot,", "much.", "…", "C0  1", "C1  2", "…"]
    assert shortened(printed, ()) == ["It costs a lot,", "much.", "…"]
    text = "a\n```console\n$ sudo powerprof x\nold\n```\nb\n"
    assert replaced(text, "x", ["new", "…"]) == "a\n```console\n$ sudo powerprof x\nnew\n…\n```\nb\n"
