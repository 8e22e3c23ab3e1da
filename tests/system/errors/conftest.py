# SPDX-License-Identifier: Apache-2.0
"""Runs bad command lines and holds every one of them to the same promise."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest

from tests.conftest import Cli, CliResult

# Nothing that this lets through takes long, and no server starts where the command line is refused.
QUICK = ("--duration", "0.05", "--repeat", "2", "--clients", "0", "--no-causes", "--meter", "none")


@dataclass(frozen=True)
class Refused:
    """`refused(code, pattern, args)`: one line of error that fits, perhaps one of hint, this exit code, no output."""

    cli: Cli

    def __call__(self, code: int, pattern: str, args: Sequence[str], env: Mapping[str, str] | None = None) -> CliResult:
        """Run it and check."""
        done = self.cli(args, env, timeout=60)
        said = done.err.splitlines()
        assert "Traceback" not in done.err
        assert said, f"{args} said nothing and ended with {done.code}"
        assert re.search(pattern, said[0]), said[0]
        assert said[0].startswith("error: ")
        assert len(said) <= 2
        assert all(line.startswith("hint: ") for line in said[1:])
        assert done.code == code, done.err
        assert done.out == ""
        assert len(done.err) < 1000
        assert all(char.isprintable() for line in said for char in line)
        if code == 3:
            assert len(said) == 2, "exit code 3 without the command that provides it"
        return done


@pytest.fixture
def refused(powerprof_cli: Cli) -> Refused:
    """See Refused."""
    return Refused(powerprof_cli)
