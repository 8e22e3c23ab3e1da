# SPDX-License-Identifier: Apache-2.0
"""What root gives up, and that what is left is enough."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from powerprof.system import programs
from tests.conftest import REPOSITORY, Cli
from tests.programs.held import has_settled
from tests.programs.own_library import own_libc

_SETTLED = """
import os, sys
from powerprof.system import capabilities as privileges
from powerprof.system.caller import account_of
from powerprof.system.acting import acting_as
from powerprof.system.errors import PowerprofError
privileges.drop_capabilities(privileges.TRACING)
with acting_as(account_of(65534)):
    pass
tries = {
    "chown": lambda: os.chown(sys.argv[1], 65534, 65534),
    "write": lambda: open(sys.argv[1], "w").close(),
    "mknod": lambda: os.mknod(sys.argv[1] + ".device", 0o20600, os.makedev(1, 3)),
    "kill": lambda: os.kill(int(sys.argv[2]), 0),
}
for name, attempt in tries.items():
    try:
        attempt()
        print(name)
    except OSError:
        pass
print(open(sys.argv[1]).read())
"""


def test_what_is_given_up_is_gone_and_reading_is_left(root: None, tmp_path: Path) -> None:
    """A file and a process of another account: read, and not changed, even by a child."""
    file = tmp_path / "file"
    file.write_text("theirs")
    file.chmod(0o600)
    os.chown(file, 65534, 65534)
    other = programs.start(["sleep", "60"], user=(65534, 65534))
    try:
        words = [sys.executable, "-c", _SETTLED, str(file), str(other.pid)]
        said = subprocess.run(words, capture_output=True, encoding="utf-8", cwd=REPOSITORY, check=True)
    finally:
        programs.stop(other)
    assert said.stdout.split() == ["theirs"]


def _watched(cli: Cli, words: list[str], file: Path) -> tuple[bool, dict[str, Any], int]:
    """Whether all threads of a tracing verb of another account's process were seen with the few capabilities, what it
    answered, and the process.
    """
    works = ":" if "profile" in words else "sleep 0.05"
    with own_libc() as environment:
        sleeper = programs.start(["sh", "-c", f"while {works}; do :; done"], user=(65534, 65534), env=environment)
        process = cli.start([*words, "--pid", str(sleeper.pid), "--duration", "3", "--json", str(file)])
        settled = False
        try:
            deadline = time.monotonic() + 90
            while process.poll() is None and time.monotonic() < deadline:
                settled = settled or has_settled(process.pid)
                time.sleep(0.2)
            _, err = process.communicate(timeout=90)
        finally:
            programs.stop(sleeper)
            process.kill()
    assert process.returncode == 0, err
    return settled, json.loads(file.read_bytes()), sleeper.pid


@pytest.mark.parametrize("words", [["attribute", "--only"], ["profile"], ["functions", "libc.so.6:wait*"]])
def test_attribute_gives_up_what_it_no_longer_needs(
    root_bpf: None, root: None, powerprof_cli: Cli, words: list[str], tmp_path: Path
) -> None:
    """While it measures it holds what is documented and nothing else, and the result is whole."""
    settled, record, pid = _watched(powerprof_cli, words, tmp_path / "record.json")
    assert settled
    # Read of another account's process, after the rest was given up. (A busy host has no idle exits to count.)
    assert record["window_s"] >= 2.9
    if words == ["profile"]:
        assert record["target_count"] > 20 and any(one["function"] for one in record["functions"])
    elif words[0] == "functions":
        assert max(one["calls_count"] for one in record["functions"]) > 5
    else:
        assert record["conservation"]["lost_count"] == 0
        assert record["target"]["pid"] == pid and record["target"]["executable"].endswith("sh")
