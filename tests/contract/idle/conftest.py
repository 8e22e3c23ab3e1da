# SPDX-License-Identifier: Apache-2.0
"""One run of `powerprof idle`, looked at by every test of this folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Cli, CliResult


@dataclass(frozen=True)
class Measured:
    """How the command ended, its JSON, and the command line tool whose home has the saved run."""

    result: CliResult
    run: dict[str, Any]
    cli: Cli

    def phase(self, name: str) -> dict[str, Any]:
        """One phase by its name."""
        return next(phase for phase in self.run["phases"] if phase["name"] == name)


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory, shared_cache: Path, mariadbd: Path, root_bpf: None) -> Measured:
    """16 silent clients on a private server, causes traced, JSON on stdout."""
    cli = Cli(tmp_path_factory.mktemp("idle"), shared_cache)
    done = cli(["idle", "--clients", "16", "--duration", "1.5", "--repeat", "2", "--json", "-"])
    assert done.code == 0, done.err
    return Measured(done, json.loads(done.out), cli)
