# SPDX-License-Identifier: Apache-2.0
"""`make demo` and `make test` on a Debian 12 and 13 where nothing was installed before, as a stranger runs them."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator

import pytest

from tests.nightly.bareroot import Machine, bare_machine

# Only the tests need these. gcc-12 (13: gcc-14) is another thing: Debian's kernel headers depend on it.
_PACKAGES_OF_TESTS = re.compile(
    r"chromium|gcc|g\+\+|golang(-go)?|rustc|postgresql(-\d+)?|redis(-server)?|nginx.*|sysbench|bpftrace|powertop"
)
_PROGRAMS_OF_TESTS = ("cc", "gcc", "g++", "go", "rustc", "chromium", "redis-server", "nginx", "pytest", "ruff", "mypy")


@pytest.fixture(scope="module", params=["bookworm", "trixie"])
def machine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Nothing installed; what one test installs is there for the next, as for the reader of the README."""
    if os.geteuid() != 0:
        pytest.skip("no capability: root (sudo make soak)")
    with bare_machine(request.param, tmp_path_factory.mktemp("bare") / "log") as made:
        yield made


def test_the_demo_installs_only_what_it_needs(machine: Machine) -> None:
    demo = machine.run("make", "demo")
    assert demo.status == 0, demo.tail()
    # On a busy host the effect of the connections is unknown.
    assert re.search("idle MariaDB .*wake|No answer: the CPUs were", demo.output), demo.tail()
    assert sorted(filter(_PACKAGES_OF_TESTS.fullmatch, machine.packages())) == []
    path = "PATH=/root/powerprof/.venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    looked = machine.run(
        "env", path, "sh", "-c", 'for name; do command -v "$name"; done; true', "sh", *_PROGRAMS_OF_TESTS
    )
    assert looked.output == ""


def test_the_demo_leaves_services_alone_and_sets_up_once(machine: Machine) -> None:
    first = machine.run("make", "setup-demo")
    assert first.status == 0, first.tail()
    began = time.monotonic()
    again = machine.run("make", "setup-demo")
    assert (again.status, again.output) == (0, "")
    assert time.monotonic() - began < 5
    assert not (machine.root / "usr/sbin/policy-rc.d").exists()
    assert list((machine.root / "etc/systemd/system").glob("*.wants/mariadb.service")) == []


def test_all_tests_run_to_their_end(machine: Machine) -> None:
    done = machine.run("make", "test")
    assert done.status == 0, done.tail()
    skipped = [line for line in done.output.splitlines() if line.startswith("SKIPPED")]
    assert skipped == []
