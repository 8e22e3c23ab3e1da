# SPDX-License-Identifier: Apache-2.0
"""What docs/studies/prepared-statements.md says of the Java connectors, on short runs."""

from __future__ import annotations

import json
import shutil

import pytest

from powerprof.database import catalogue
from powerprof.system import paths
from tests.conftest import Cli

_CHOICES = ["--rate", "400", "--duration", "2", "--pairs", "6", "--meter", "none", "--no-save"]


@pytest.mark.parametrize("connector", ["mysql", "mariadb"])
def test_statements_that_the_server_prepares_for_one_execution_cost_it_more(powerprof_cli: Cli, connector: str) -> None:
    assert shutil.which("javac"), "make soak installs it"
    # The user's consent is the tests' own here: two jars of 3 MB, pinned.
    catalogue.fetch_entry(catalogue.find_entry(f"{connector}-connector-j"), lambda question: True)
    cache = {"XDG_CACHE_HOME": str(paths.cache_dir().parent)}

    def cost(a: str, b: str) -> dict[str, dict[str, float]]:
        names = [f"{connector}-j-{name}" for name in (a, b)]
        done = powerprof_cli(["--quiet", "compare", *names, *_CHOICES, "--json", "-"], cache, timeout=600)
        # The counts of prepares, executions and closes are asserted in every window: else it ends with an error.
        assert done.code == 0, done.err
        return {metric["name"]: metric for metric in json.loads(done.out)["metrics"]}

    each = cost("client-prepared", "server-prepared")
    assert each["round_trips_per_query"]["a"]["mean"] == pytest.approx(1, abs=0.05)
    assert each["round_trips_per_query"]["b"]["mean"] == pytest.approx(2, abs=0.05)
    server = each["c0_ms_per_query_server"]["difference"]
    assert server["ci95"][0] > 0
    kept = cost("server-prepared-cached", "server-prepared")
    assert kept["round_trips_per_query"]["a"]["mean"] == pytest.approx(1, abs=0.05)
    assert kept["c0_ms_per_query_server"]["difference"]["ci95"][0] > 0
