# SPDX-License-Identifier: Apache-2.0
"""Every loader of the table, for some seconds: the sound inputs, the cases that were found, and some thousand more."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from powerprof.system.errors import PowerprofError
from tests.nightly.fuzz.campaign import MOST_BYTES, MOST_S, Problem, campaign, feed
from tests.nightly.fuzz.campaign import Outcome as Counted
from tests.nightly.fuzz.loaders import CORPUS, LOADERS, Loader
from tests.nightly.fuzz.mutate import bent

BY_NAME = {loader.name: loader for loader in LOADERS}
CASES = sorted(path for path in CORPUS.glob("*/*"))


def said(problems: list[Problem]) -> list[str]:
    return [f"{one.loader} {one.number}: {one.what}" for one in problems]


def test_there_are_many_loaders_and_each_has_a_seed_that_it_reads(tmp_path: Path) -> None:
    assert len(BY_NAME) == len(LOADERS) >= 14
    unread = []
    for loader in LOADERS:
        (tmp_path / loader.name).mkdir()
        path = tmp_path / loader.name / "input"
        for seed in loader.seeds():
            path.write_bytes(seed)
            try:
                loader.read(path, seed)
            except PowerprofError:
                continue
            break
        else:
            unread.append(loader.name)
    assert unread == []


@pytest.mark.parametrize("case", CASES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_case_that_was_found(case: Path, tmp_path: Path) -> None:
    outcome = Counted()
    feed(BY_NAME[case.parent.name], 0, case.read_bytes(), tmp_path, outcome)
    assert said(outcome.problems) == []


def test_some_thousand_inputs() -> None:
    outcome = campaign(LOADERS, count=100 * len(LOADERS))
    assert said(outcome.problems) == []
    assert min(outcome.tried.values()) >= 100
    assert outcome.slowest_s < MOST_S


def test_the_campaign_finds_what_is_wrong(tmp_path: Path) -> None:
    """A loader that lets Python's words out, one that takes long, one that takes memory."""

    def words(path: Path, data: bytes) -> object:
        return int(data)

    def slow(path: Path, data: bytes) -> object:
        end = time.process_time() + MOST_S + 0.2
        while time.process_time() < end:
            pass
        return data

    def large(path: Path, data: bytes) -> object:
        return (b"x" * (MOST_BYTES * 2)).count(b"y")

    found = campaign([Loader("words", words, lambda: [b"12"])], count=40).problems
    assert found and all("ValueError" in one.what for one in found)
    for loader in (Loader("slow", slow, lambda: [b"x"]), Loader("large", large, lambda: [b"x"])):
        outcome = Counted()
        feed(loader, 0, b"x", tmp_path, outcome)
        assert len(outcome.problems) == 1


def test_an_input_is_the_same_for_the_same_number() -> None:
    assert [bent([b"abc 12 def"], number) for number in range(200)] == [bent([b"abc 12 def"], n) for n in range(200)]
