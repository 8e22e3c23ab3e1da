# SPDX-License-Identifier: Apache-2.0
"""`powerprof servers`: nothing is downloaded without consent, and what is not there is named with its remedy."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY, Cli


def test_the_list_shows_servers_and_licences(powerprof_cli: Cli) -> None:
    done = powerprof_cli(["servers"])
    assert done.code == 0
    assert "mysql-5.5.9" in done.out
    assert "GPL-2.0-only" in done.out
    assert "powerprof servers fetch mysql-5.5.9" in done.out
    assert "mariadb-10.5  MariaDB 10.5 of Debian's bullseye" in done.out
    server, *others = json.loads(powerprof_cli(["servers", "list", "--json", "-"]).out)["servers"]
    assert len(others) >= 8 and {other["fetched"] for other in others} == {False}
    assert (server["fetched"], server["path"], server["download_bytes"]) == (False, None, 140_128_698)


def test_without_a_terminal_only_yes_agrees(powerprof_cli: Cli) -> None:
    done = powerprof_cli(["servers", "fetch", "mysql-5.5.9"])
    assert (done.code, done.out) == (1, "")
    assert done.err.splitlines()[-1] == "hint: add --yes"


def test_no_at_a_terminal_fetches_nothing(powerprof_cli: Cli) -> None:
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "powerprof", "servers", "fetch", "mysql-5.5.9"],
        cwd=REPOSITORY,
        env=powerprof_cli.environment(),
        stdin=follower,
        stdout=subprocess.PIPE,
        stderr=follower,
    )
    os.close(follower)
    os.write(leader, b"n\n")
    out, _ = process.communicate(timeout=60)
    said = os.read(leader, 4096).decode()
    os.close(leader)
    assert (process.returncode, out) == (0, b"")
    assert "140 MB" in said and "GPL-2.0-only" in said and "known security holes" in " ".join(said.split())
    assert "Declined: mysql-5.5.9 was not fetched." in said


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (["servers", "fetch", "mysql-4.0"], 2, "error: no server is called 'mysql-4.0'"),
        (["servers", "remove", "mysql-5.5.9"], 3, "error: mysql-5.5.9 has not been fetched"),
        (
            ["run", "replica-unique-id:replica-unique-id", "--server-build", "mysql-5.5.9"],
            3,
            "error: mysql-5.5.9 has not been fetched",
        ),
    ],
)
def test_impossible_requests_are_refused(powerprof_cli: Cli, arguments: list[str], code: int, error: str) -> None:
    done = powerprof_cli(arguments)
    assert done.code == code
    assert done.err.startswith(error)


def test_a_fetched_server_is_removed(powerprof_cli: Cli) -> None:
    cli = Cli(powerprof_cli.home)
    kept = cli.home / "cache/powerprof/servers"
    (kept / "mysql-5.5.9/lib").mkdir(parents=True, mode=0o700)
    outside = cli.home / "outside"
    outside.write_text("kept")
    (kept / "mysql-5.5.9/lib/link").symlink_to(outside)
    asked = cli(["servers", "remove", "mysql-5.5.9"])
    assert (asked.code, asked.err.splitlines()[-1]) == (2, "hint: add --yes")
    assert (kept / "mysql-5.5.9").is_dir()
    done = cli(["servers", "remove", "mysql-5.5.9", "--yes"])
    assert (done.code, done.err) == (0, "")
    assert re.match("mysql-5.5.9 was removed. To fetch it again: .*powerprof servers fetch mysql-5.5.9", done.out)
    assert (list(kept.iterdir()), outside.read_text()) == ([], "kept")
