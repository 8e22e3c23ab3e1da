# SPDX-License-Identifier: Apache-2.0
"""Mistakes that a person makes: the first line names the option and the value as typed, the hint what was meant."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.programs.in_process import Run, the_commands, up_to_the_first_window
from tests.system.errors.test_odd_values import problem_of

__all__ = ["the_commands", "up_to_the_first_window"]

CURE = ("cure", "--pid", "1")
REFUSED: list[tuple[str, str, tuple[str, ...]]] = [
    # A value that was forgotten.
    (r"--html has no value: --quiet is the next option", "give --html its value first", ("idle", "--html", "--quiet")),
    (r"--label has no value", "powerprof run --help", ("run", "city:index", "--label")),
    # A name that there is not: only those that are nearly the same are proposed.
    (r"no such option: --duraton", r"did you mean --duration\?", ("attribute", "--duraton", "5")),
    (r"no such option: --dur", r"did you mean --duration\?", ("attribute", "--dur", "5")),
    (r"no such option: --html", r"powerprof syscalls --help", ("syscalls", "--pid", "1", "--html", "x")),
    (r"option '--explain' does not take a value", "powerprof queries --help", ("queries", "--pid", "1", "--explain=x")),
    (r"--label \? is not UTF-8", "type it in UTF-8", ("residency", "--label", "\udcff")),
    (r"--max-p95 has no effect with --guard", "leave it out", (*CURE, "--guard", "p99=5%", "--max-p95", "5")),
    # An argument too many.
    (r"unexpected argument: 60ms", "powerprof cure --help", (*CURE, "60ms", "--thread", "x")),
    (r"unexpected argument: releases", "powerprof study --help", ("study", "read-buffer", "releases")),
    # The value as it was typed.
    (r"--attribute 0: must be at least 0.5", "", ("run", "city:index", "--attribute", "0")),
    (r"--max-p95 -1: must be at least 0", "", (*CURE, "--thread", "x", "--slack", "1ms", "--max-p95", "-1")),
    (r"--wait -5: must be at least 0", "", (*CURE, "--keep", "--wait", "-5")),
    (r"--step 00.1: must be at least 0.2", "", ("energy", "--calibrate", "--step=00.1")),
    # What is swept.
    (r"--set server needs values", "--set server=mariadb", ("sweep", "city:index", "--set", "server")),
    (r"--set nosuch: city has no such parameter", "it has: clients", ("sweep", "city:index", "--set", "nosuch=1,2")),
    (r"--set =1 has no name before =", "such as --set", ("sweep", "city:index", "--set", "=1")),
    (r"--clients 1-4: must be a whole number", "such as --clients 1,2,4", ("sweep", "city:index", "--clients", "1-4")),
    # Meters.
    (r"--energy-source rapl,rapl names rapl twice", "once", ("energy", "--energy-source", "rapl,rapl")),
    (r"--energy-source auto,rapl: auto stands alone", "", ("energy", "--energy-source", "auto,rapl")),
    # Conditions that do not do the same kind of work, before a server is started.
    (
        r"city:index and idle-connections:sixteen-connections have loads of different kinds, statements and idle",
        "conditions of one workload",
        ("compare", "city:index", "idle-connections:sixteen-connections"),
    ),
    # Runs.
    (r"no run 'run-0001' in /\S+", "powerprof runs", ("compare", "run-0001", "run-0002")),
    # A list of what can be tried is no trial.
    *(
        (rf"{option} has no effect without .*, --set or --finding", "leave it out", (*CURE, option, *value))
        for option, *value in (
            ("--pairs", "9"),
            ("--window", "9"),
            ("--seed", "5"),
            ("--max-p95", "5"),
            ("--energy-source", "none"),
            ("--yes",),
            ("--no-save",),
        )
    ),
    (r"--set: \S+ \(1\) is not a MariaDB or MySQL server", "--thread NAME --slack TIME", (*CURE, "--set", "a=1")),
    (r"--pid 1: \S+ is not a MariaDB, MySQL or PostgreSQL server", "powerprof profile", ("queries", "--pid", "1")),
]


@pytest.mark.parametrize(("error", "hint", "words"), REFUSED, ids=[" ".join(words) for _, _, words in REFUSED])
def test_it_is_refused(error: str, hint: str, words: tuple[str, ...], up_to_the_first_window: Run) -> None:
    ended = up_to_the_first_window(words)
    assert (ended.code, problem_of(ended)) == (2, None), ended
    first, second = ended.err.splitlines()
    assert re.match(f"error: {error}", first), first
    assert re.search(hint, second), second


def test_an_option_that_is_a_value_can_be_given(up_to_the_first_window: Run) -> None:
    ended = up_to_the_first_window(("workloads", "--json=--workloads"))
    assert ended.code == 0, ended
    assert Path("--workloads").is_file()
