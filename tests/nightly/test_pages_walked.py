# SPDX-License-Identifier: Apache-2.0
"""README and tutorial on a bare Debian, command by command: each works, and prints the lines that the page shows.

$WALK names a folder for the transcripts, with the page's lines before the output.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from powerprof.database import catalogue
from tests.conftest import REPOSITORY
from tests.nightly.bareroot import Machine, bare_machine
from tests.nightly.typed import Typed

_PAGES = (REPOSITORY / "README.md", REPOSITORY / "docs/tutorial.md")
# Another test runs all tests; these run until they are stopped.
_LEFT_OUT = re.compile(r"make test\b")
_ENDLESS = re.compile(r"powerprof (watch|export)$")
# The tutorial's server is MySQL 9.7: of other servers its thread is unknown.
_OF_MYSQL = re.compile(r"--thread log_files_governor|report cure-")
# A fenced block, an indented block, and a line of text or of a table with commands.
_PARTS = re.compile(
    r"^```console\n(.*?)^```|^((?: {4}\S[^\n]*\n)+)|^(\S[^\n]*`(?:sudo )?powerprof [^\n]*)", re.M | re.S
)
_SPAN = re.compile(r"`((?:sudo )?powerprof [^`]+)`")
_MARIADB = "mkdir -p /run/mysqld && chown mysql /run/mysqld && exec mariadbd --user=mysql --skip-networking"
_MYSQL = """
mkdir -p /opt/mysql/run/mysqld /opt/mysql/tmp /opt/mysql/var/lib && chmod 1777 /opt/mysql/tmp
rm -rf /run/mysqld && ln -s /opt/mysql/run/mysqld /run/mysqld
for name in lib lib64 bin sbin; do [ -e /opt/mysql/$name ] || ln -s usr/$name /opt/mysql/$name; done
mkdir -p /opt/mysql/etc && cp /etc/passwd /etc/group /opt/mysql/etc
mount --rbind /dev /opt/mysql/dev && mount -t proc proc /opt/mysql/proc
set -- chroot /opt/mysql /usr/sbin/mysqld --no-defaults --user=root --datadir=/var/lib/data --skip-networking
"$@" --initialize-insecure && exec "$@" --socket=/run/mysqld/mysqld.sock --mysqlx=OFF --secure-file-priv=NULL
"""


@dataclass(frozen=True)
class Step:
    """A command of a page and the output that the page shows."""

    command: str
    shown: tuple[str, ...] = ()


def steps(page: Path) -> Iterator[Step]:
    """Yield the commands of a page in its order: typed at a prompt, in a block of their own, and in text or a table."""
    text = page.read_text(encoding="utf-8")
    for part in _PARTS.finditer(text):
        fenced, indented, line = part.groups()
        if fenced:
            command, *shown = fenced.splitlines()
            yield Step(command.removeprefix("$ "), tuple(shown))
        for typed in (indented or "").splitlines():
            yield Step(re.sub(r"\s+# .*", "", typed).strip())
        for command in _SPAN.findall(line or ""):
            # The last cell of the README's table: whether it needs root.
            yield Step(command if line.rstrip(" |").endswith("no") or line[0] != "|" else f"sudo {command}")


def _shape(line: str) -> str:
    """Return a line without its figures and its wrapping."""
    return re.sub(r"[-+−]?\d[\d.,]*", "N", " ".join(line.split()))


def missing(step: Step, output: str) -> list[str]:
    """Return the first words of the shown lines that the output does not have in this order."""
    printed = _shape(output.replace("\n", " "))
    absent, begin = [], 0
    for line in step.shown:
        shape = _shape(line)
        if shape in ("", "…"):
            continue
        found = printed.find(shape, begin)
        if found < 0:
            absent.append(line)
        else:
            begin = found
    return absent


@pytest.fixture(scope="module", params=["bookworm", "trixie"])
def machine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine that has seen only the checkout."""
    if os.geteuid() != 0:
        pytest.skip("no capability: root (sudo make soak)")
    with bare_machine(request.param, tmp_path_factory.mktemp("walk") / "log") as made:
        yield made


def _walk(machine: Machine, server: str, socket: str, walked: list[Step]) -> list[Typed]:
    """Type the commands next to a running server."""
    commands = [
        f"timeout -s INT 12 {step.command}" if _ENDLESS.search(step.command) else step.command for step in walked
    ]
    (machine.root / "tmp/commands").write_text("".join(f"{command}\n" for command in commands))
    (machine.root / "tmp/server").write_text(server)
    wait = f"for _ in $(seq 600); do [ -S {socket} ] && break; sleep 0.2; done; sleep 3"
    typed = "/usr/bin/python3 tests/nightly/typed.py 400 </tmp/commands >/tmp/results"
    done = machine.run("sh", "-c", f"sh /tmp/server >/tmp/server.log 2>&1 & {wait}; {typed}")
    assert done.status == 0, done.tail()
    return [Typed(**json.loads(line)) for line in (machine.root / "tmp/results").read_text().splitlines()]


def _write(suite: str, title: str, walked: list[Step], results: list[Typed]) -> None:
    folder = os.environ.get("WALK")
    if not folder:
        return
    lines = [f"=== {title}"]
    for step, typed in zip(walked, results, strict=True):
        absent = missing(step, typed.output)
        lines += [f"--- $ {typed.command}    (exit {typed.status}, {typed.seconds} s)"]
        lines += [f"page | {line}" for line in step.shown]
        lines += [f"     | {line}" for line in typed.output.splitlines()]
        lines += [f"ABSENT | {line}" for line in absent]
    with (Path(folder) / f"walk-{suite}.txt").open("a") as file:
        file.write("\n".join(lines) + "\n")


def test_the_readme_and_the_tutorial_with_the_server_of_debian(machine: Machine) -> None:
    readme, tutorial = (list(steps(page)) for page in _PAGES)
    begin = readme.index(Step("make demo"))
    began_s = time.monotonic()
    demo = machine.run("make", "demo")
    typed_demo = Typed("make demo", demo.status, demo.output, round(time.monotonic() - began_s, 1))
    _write(machine.suite, "README", [Step("make demo")], [typed_demo])
    assert demo.status == 0, demo.tail()
    # The README's table comes before the installation.
    walked = [
        step
        for step in (*readme[begin + 1 :], *readme[:begin], *tutorial)
        if not _LEFT_OUT.search(step.command) and not _OF_MYSQL.search(step.command)
    ]
    results = _walk(machine, _MARIADB, "/run/mysqld/mysqld.sock", walked)
    _write(machine.suite, "MariaDB of Debian", walked, results)
    assert [(typed.command, typed.output[-400:]) for typed in results if typed.status not in (0, 130, 124)] == []


@pytest.mark.historical("mysql-9.7")
def test_the_tutorial_with_its_own_server(machine: Machine) -> None:
    tree = catalogue.load_build("mysql-9.7").root
    shutil.copytree(tree, machine.root / "opt/mysql", symlinks=True)
    for name in ("dev", "proc"):
        (machine.root / "opt/mysql" / name).mkdir(exist_ok=True)
    walked = [step for step in steps(_PAGES[1]) if "ln -s" not in step.command]  # done above
    results = _walk(machine, _MYSQL, "/opt/mysql/run/mysqld/mysqld.sock", walked)
    _write(machine.suite, "MySQL 9.7", walked, results)
    assert [(typed.command, typed.output[-400:]) for typed in results if typed.status != 0] == []
    wrong = [
        (step.command, absent)
        for step, typed in zip(walked, results, strict=True)
        if (absent := missing(step, typed.output))
    ]
    assert wrong == []
