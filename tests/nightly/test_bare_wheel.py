# SPDX-License-Identifier: Apache-2.0
"""The files of `make dist` on a bare Debian 12, 13 and sid: one `pip install`, and everything that traces works.

Nothing else is installed but the server that is measured and Python's venv: no bcc, no compiler, no kernel headers.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY
from tests.nightly.bareroot import Finished, Machine, bare_machine

# gcc-12-base is a licence and a folder; libgcc-s1 is a library that everything has.
_COMPILING = re.compile(r"python3-bpfcc|bpfcc-tools|libbpfcc|clang.*|llvm.*|gcc(-\d+)?|cpp(-\d+)?|linux-headers.*")
_APT = ("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "--yes", "--quiet")
# A server that four clients ask ten times a second, and what looks at it; each answer in a file. The last one is the
# exporter's, asked by Python: there is no curl.
_MEASURED = r"""
set -eu
mkdir -p /run/mysqld /tmp/out && chown mysql /run/mysqld
mariadbd --user=mysql --skip-networking >/tmp/out/server.log 2>&1 &
server=$!
for _ in $(seq 600); do [ -S /run/mysqld/mysqld.sock ] && break; sleep 0.1; done
cat >/tmp/clients.sql <<'EOF'
DELIMITER //
CREATE PROCEDURE test.often() BEGIN WHILE TRUE DO SELECT SLEEP(0.1) INTO @slept; END WHILE; END //
EOF
mariadb -e 'CREATE DATABASE IF NOT EXISTS test; DROP PROCEDURE IF EXISTS test.often'
mariadb </tmp/clients.sql
for _ in 1 2 3 4; do mariadb -e 'CALL test.often()' & done
while :; do mariadb -e 'SELECT COUNT(*) FROM information_schema.tables' >/dev/null; done &
sleep 1
powerprof --quiet attribute --pid $server --duration 4 --no-save --json /tmp/out/attribute.json >/dev/null
powerprof --quiet queries --pid $server --duration 4 --no-save --json /tmp/out/queries.json >/dev/null
powerprof watch --json-lines --count 2 --interval 1 --no-ask >/tmp/out/watch.jsonl
powerprof --quiet export --interval 1 --no-ask --listen 127.0.0.1:19477 &
exporter=$!
python3 - >/tmp/out/metrics <<'EOF'
import time, urllib.request
for _ in range(300):
    try:
        text = urllib.request.urlopen("http://127.0.0.1:19477/metrics").read().decode()
    except OSError:
        text = ""
    if "powerprof_wakeups_total{" in text:
        break
    time.sleep(0.1)
print(text)
EOF
kill -INT $exporter
wait $exporter || [ $? -eq 130 ]
"""


def _digests(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made twice, in other folders and by another umask, and equal."""
    folders = [tmp_path_factory.mktemp("dist") / name for name in ("one", "another")]
    for folder, umask in zip(folders, ("022", "077"), strict=True):
        subprocess.run(["sh", "-c", f'umask {umask} && "$0" "$1"', REPOSITORY / "packaging/dist", folder], check=True)
    made = [_digests(folder) for folder in folders]
    assert made[0] == made[1]
    assert sorted(name.rpartition(".")[2] for name in made[0]) == ["gz", "whl"]
    return folders[0]


@pytest.fixture(scope="module", params=["bookworm", "trixie", "sid"])
def machine(request: pytest.FixtureRequest, files: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """With the files, the server and venv, and nothing of the checkout."""
    if os.geteuid() != 0:
        pytest.skip("no capability: root (sudo make soak)")
    with bare_machine(request.param, tmp_path_factory.mktemp("bare") / "log") as made:
        shutil.rmtree(made.root / "root/powerprof")
        (made.root / "usr/sbin/policy-rc.d").write_text("#!/bin/sh\nexit 101\n")
        (made.root / "usr/sbin/policy-rc.d").chmod(0o755)
        for file in files.iterdir():
            shutil.copy(file, made.root / "opt")
        _done(made, *_APT, "update")
        _done(made, *_APT, "install", "--no-install-recommends", "python3-venv", "mariadb-server")
        yield made


def _done(machine: Machine, *argv: str) -> Finished:
    done = machine.run(*argv, folder="/")
    assert done.status == 0, done.tail()
    return done


def _in(folder: str, *argv: str) -> tuple[str, ...]:
    return ("env", f"PATH=/opt/{folder}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", *argv)


def _installed(machine: Machine, file: str, folder: str) -> None:
    """One line, as the README has it."""
    _done(machine, "sh", "-ec", f"python3 -m venv /opt/{folder} && /opt/{folder}/bin/pip install --quiet /opt/{file}")
    assert _done(machine, f"/opt/{folder}/bin/pip", "check").output.startswith("No broken requirements")


def test_one_line_installs_it_and_all_that_traces_works(machine: Machine, files: Path) -> None:
    (wheel,) = files.glob("*.whl")
    _installed(machine, wheel.name, "wheel")
    assert sorted(filter(_COMPILING.fullmatch, machine.packages())) == []
    doctor = _done(machine, *_in("wheel", "powerprof", "doctor", "--json", "/tmp/doctor.json"))
    assert "Traceback" not in doctor.output
    known = {row["name"]: row for row in _json(machine, "tmp/doctor.json")["capabilities"]}
    assert (known["tracing"]["status"], known["bcc"]["status"], known["headers"]["status"]) == ("ok", "none", "none")
    assert "carried" in known["tracing"]["detail"]

    idle = _done(machine, *_in("wheel", "powerprof", "idle", "--clients", "4", "--quick", "--no-save"))
    # On a busy host what clients add is unknown.
    assert re.search("idle MariaDB .*wake|No answer", idle.output), idle.tail()

    _done(machine, *_in("wheel", "sh", "-c", _MEASURED))
    attributed = _json(machine, "tmp/out/attribute.json")
    # MariaDB has names of its own; of the C library's only those that are not stripped.
    functions = {frame["function"] or "" for row in _rows(attributed) for frame in row["stack"]}
    assert any("handle_one_connection" in name for name in functions), sorted(functions)
    assert attributed["conservation"]["lost_count"] == 0
    statements = [row["text"] or "" for row in _json(machine, "tmp/out/queries.json")["statements"]]
    assert any("sleep" in text.lower() for text in statements), statements
    watched = [json.loads(line) for line in (machine.root / "tmp/out/watch.jsonl").read_text().splitlines()]
    assert len(watched) == 2
    metrics = (machine.root / "tmp/out/metrics").read_text()
    assert "powerprof_wakeups_total{" in metrics and "powerprof_idle" in metrics


def test_the_sdist_alone_installs_it_too(machine: Machine, files: Path) -> None:
    (sdist,) = files.glob("*.tar.gz")
    _installed(machine, sdist.name, "sdist")
    version = _done(machine, *_in("sdist", "powerprof", "--version"))
    assert version.output.split() == ["powerprof", re.sub(r"powerprof-|\.tar\.gz", "", sdist.name)]
    done = _done(machine, *_in("sdist", "powerprof", "attribute", "--system", "--duration", "1", "--no-save"))
    assert "Traceback" not in done.output
    assert sorted(filter(_COMPILING.fullmatch, machine.packages())) == []


def _json(machine: Machine, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((machine.root / name).read_text())
    return found


def _rows(record: dict[str, Any]) -> list[dict[str, Any]]:
    return [*record["wakeups"], *record["wakings_without_exit"]]
