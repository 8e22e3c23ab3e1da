# SPDX-License-Identifier: Apache-2.0
"""A newcomer follows the how-to word by word: every command of it, as it is written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from powerprof.database.private_server import PrivateServer
from tests.conftest import Cli
from tests.programs.option_files import write_options

REPOSITORY = Path(__file__).resolve().parents[3]
PAGE = REPOSITORY / "docs/how-to/write-a-workload.md"
# The two comparisons of step 5 are not run: step 7 repeats the shorter one with another option.
_COMPARE = "powerprof compare scan indexed --workloads my-workloads"
_LEFT_OUT = {_COMPARE, f"{_COMPARE} --pairs 5 --duration 0.4"}


def test_the_how_to_works_as_written(
    tmp_path: Path, powerprof_cli: Cli, users_server: PrivateServer, sysbench: Path
) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    commands = [block.strip() for block in blocks if block.strip() not in _LEFT_OUT]
    assert len(commands) == len(blocks) - 2 == 6
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "powerprof").symlink_to(Path(sys.executable).parent / "powerprof")
    environment = powerprof_cli.environment(
        {"SOCKET": str(users_server.socket), "MYSQL_PWD": users_server.login.password}
    )
    environment["PATH"] = f"{programs}:{environment['PATH']}"
    outputs = []
    for command in commands:
        # The account's name is the test's own; a user's own server takes the one who is logged in.
        text = command.replace('--socket "$SOCKET"', f'--defaults-file "{_defaults(tmp_path, users_server)}"')
        done = subprocess.run(
            ["/bin/sh", "-ec", text], cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8", timeout=120
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        outputs.append(done.stdout)
    listing, given, checked = outputs[3:]
    assert "orders: What a customer has spent, with and without an index." in listing
    for output in (given, checked):
        assert re.search(
            r"scan uses [\d.]+ times as much server CPU time per query as indexed", " ".join(output.split())
        )
        assert "orders_indexed ref on by_customer" in output
    with users_server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW DATABASES LIKE 'powerprof%'")
        assert cursor.fetchall() == ()


def _defaults(folder: Path, server: PrivateServer) -> Path:
    path = folder / "client.cnf"
    write_options(path, server.login, password=False)
    path.chmod(0o600)
    return path
