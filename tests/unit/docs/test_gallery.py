# SPDX-License-Identifier: Apache-2.0
"""Tests for the pages of the gallery and the transcripts, which `make gallery` writes."""

from __future__ import annotations

import json
import re

import pytest

from tests.conftest import REPOSITORY
from tests.programs.transcripts import KEPT, PAGE, shortened

GALLERY = REPOSITORY / "docs/gallery"
PAGES = ("idle", "attribute", "compare", "sweep", "diagnose")
_RECORD = re.compile(r'<script type="application/json" id="record">(.*?)</script>', re.DOTALL)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_carries_the_record_of_a_run(name: str) -> None:
    text = (GALLERY / f"{name}.html").read_text(encoding="utf-8")
    found = _RECORD.search(text)
    assert found is not None
    record = json.loads(found[1])
    assert record["command"] == name
    assert record["host"]["cpus"] >= 1
    assert not re.search(r"/(home|root|work|tmp/(?!powerprof))/?", text), "a path of the machine that made it"


def test_it_is_small() -> None:
    sizes = {path.name: path.stat().st_size for path in GALLERY.iterdir()}
    assert {f"{name}.html" for name in PAGES} | {"idle.png", "compare.png", "watch.svg"} == set(sizes)
    assert max(sizes.values()) <= 400_000
    assert sum(sizes.values()) <= 4_000_000


def test_the_picture_of_watch_shows_the_screen_and_requests_nothing() -> None:
    text = (GALLERY / "watch.svg").read_text(encoding="utf-8")
    assert not re.search(r"url\((?!#)|@import|<script|href=", text)
    assert all(word in text for word in ("wake-ups", "statements/s", "trend", "itself:", "quit"))
    assert not re.search(r"/(home|root|work)/", text)


def test_every_answer_has_its_block_of_80_columns() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for command, kept in KEPT.items():
        (block,) = re.findall(rf"```console\n\$ sudo powerprof {re.escape(command)}\n(.*?)```", text, re.DOTALL)
        lines = block.splitlines()
        assert max(map(len, lines)) <= 80
        assert shortened([line for line in lines if line != "…"], kept) == lines
