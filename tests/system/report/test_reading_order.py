# SPDX-License-Identifier: Apache-2.0
"""The reading order of docs/dev/architecture.md names the files that make a report, from options to sentence."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from powerprof.database.private_server import PrivateServer
from tests.conftest import REPOSITORY
from tests.programs.option_files import write_options

pytestmark = pytest.mark.usefixtures("root_bpf", "sysbench")

_PAGE = REPOSITORY / "docs/dev/architecture.md"
_UPPER = ("cli", "report", "experiment", "cure", "live", "diagnosis", "attribution", "queries", "workloads")
_SHORT = ("--duration", "0.4")
COMMANDS = {
    "attribute": ("attribute", "--pid", "PID", "--duration", "1"),
    "compare": ("compare", "index", "no-index", "--pairs", "3", *_SHORT),
    "idle": ("idle", "--clients", "2", "--repeat", "2", *_SHORT),
    "diagnose": ("diagnose", "--defaults-file", "CNF", "--duration", "1"),
    "queries": ("queries", "--defaults-file", "CNF", "--duration", "1"),
}
# The most files of a list: who needs more does not read on.
_MOST = {"attribute": 16, "compare": 18, "idle": 12, "diagnose": 18, "queries": 14}


def listed_files(verb: str) -> list[str]:
    """Return the files that the page lists for a verb and for every report."""
    section = _PAGE.read_text().split("## Reading order", 1)[1].split("\n## ", 1)[0]
    paragraphs = [part for part in section.split("\n\n") if part.startswith((f"`{verb}", "Every report:"))]
    assert len(paragraphs) == 2, verb
    return re.findall(r"`((?:\w+/)+\w+\.py)`", "\n".join(paragraphs))


@pytest.mark.parametrize("verb", COMMANDS)
def test_list_holds_half_of_the_code_that_makes_the_report(
    verb: str, tmp_path: Path, pooled_server: Callable[..., PrivateServer]
) -> None:
    server = pooled_server()
    options = write_options(tmp_path / "client.cnf", server.login)
    places = {"PID": str(server.pid), "CNF": str(options)}
    words = [places.get(word, word) for word in COMMANDS[verb]]
    result = tmp_path / "called.json"
    subprocess.run(
        [sys.executable, "-m", "tests.programs.called_lines", str(result), *words, "--no-save"],
        cwd=REPOSITORY,
        env={**os.environ, "XDG_DATA_HOME": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    lines = {path: count for path, count in json.loads(result.read_text()).items() if path.startswith(_UPPER)}
    listed = listed_files(verb)
    missing = sorted(((count, path) for path, count in lines.items() if path not in listed), reverse=True)
    share = sum(count for path, count in lines.items() if path in listed) / sum(lines.values())
    assert share >= 0.5, f"{share:.0%}; the largest that are not listed: {missing[:8]}"
    assert len(listed) <= _MOST[verb]
    assert [path for path in listed if not (REPOSITORY / "powerprof" / path).is_file()] == []
