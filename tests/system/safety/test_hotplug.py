# SPDX-License-Identifier: Apache-2.0
"""CPUs that go offline and come back while `cure --host` has changed a setting of each."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.programs.hotplug import CPUS, DEFAULT, OLD, OURS, FakeCpus
from tests.programs.waiting import wait_until
from tests.system.cure.test_cure import kill_both

pytestmark = pytest.mark.usefixtures("root_bpf")
_OTHERS = [OLD if cpu != 3 else OURS for cpu in CPUS]


@pytest.fixture
def cpus(tmp_path: Path) -> FakeCpus:
    return FakeCpus.make(tmp_path)


@pytest.fixture
def cli(cpus: FakeCpus, powerprof_cli: Cli) -> Cli:
    return cpus.under(powerprof_cli)


@pytest.fixture
def curing(cpus: FakeCpus, cli: Cli) -> Iterator[subprocess.Popen[str]]:
    """Yield a cure that has changed the governor of all CPUs."""
    with subprocess.Popen(["sleep", "600"]) as target:
        words = ["cure", "--pid", str(target.pid), "--host", f"cpu-governor={OURS}", "--yes", "--no-save"]
        process = cli.start([*words, "--duration", "2", "--pairs", "50", "--meter", "none"])
        try:
            wait_until(lambda: cpus.governors() == [OURS] * 8, "the governor is not changed")
            yield process
        finally:
            process.kill()
            process.communicate()
            target.kill()


@pytest.mark.parametrize("governor", [None, DEFAULT])
def test_a_cpu_that_goes_offline_ends_the_cure_and_the_others_are_restored(
    cpus: FakeCpus, cli: Cli, curing: subprocess.Popen[str], governor: str | None
) -> None:
    """The keeper stays for a minute. It restores a CPU that is back with powerprof's value, and no other."""
    cpus.go(3)
    _, err = curing.communicate(timeout=120)
    assert curing.returncode == 1 and "Traceback" not in err
    assert "error: the frequency governor on CPU 3 is missing" in err
    assert [cpus.governor(cpu).read_text() for cpu in CPUS if cpu != 3] == [OLD] * 7
    changed = cpus.governor(3).read_text() == OURS
    assert changed == (f"CPU 3 is missing, and will be {OLD} again when it is back" in err)
    cpus.back(3, governor=governor)
    expected = governor or OLD
    # After a minute on a busy host it is the next start instead.
    wait_until(lambda: not cli(["runs"]).code and not cpus.journals(), "the journal stays")
    assert cpus.governors() == [OLD] * 3 + [expected] + [OLD] * 4


@pytest.mark.parametrize(
    ("governor", "line"),
    [
        (None, f"the frequency governor on CPU 3 is {OLD} again: a powerprof that was killed had left it at {OURS}"),
        (DEFAULT, f"the frequency governor on CPU 3 is {DEFAULT}, and somebody else's: it was {OLD} before"),
    ],
)
def test_the_next_start_restores_the_cpus_that_are_there(
    cpus: FakeCpus, cli: Cli, curing: subprocess.Popen[str], governor: str | None, line: str
) -> None:
    kill_both(curing, lambda: cpus.governors() == [OURS] * 8)
    cpus.go(3)
    assert f"the frequency governor on CPUs 0-2,4-7 is {OLD} again" in cli(["runs"]).err
    assert cpus.governors() == _OTHERS
    assert "note:" not in cli(["runs"]).err and len(cpus.journals()) == 1, "silent while it is away"
    cpus.governor(5).write_text(OURS)  # somebody else's, from now on
    cpus.back(3, governor=governor)
    assert line in cli(["runs"]).err
    assert cpus.governors() == [OLD] * 3 + [governor or OLD, OLD, OURS, OLD, OLD]
    assert cpus.journals() == []
