# SPDX-License-Identifier: Apache-2.0
"""CPUs of servers by name and role: what is typed, and what is refused before a server starts."""

from __future__ import annotations

import os

import pytest

from powerprof.cli.bench import cpu_sets
from powerprof.database.private.topology import plan_topology
from powerprof.experiment.bench_data import BenchOptions, check_supported, member_cpus
from powerprof.system.errors import UsageError
from powerprof.workloads.catalogue import find_one
from powerprof.workloads.reading import resolve

FIRST = min(os.sched_getaffinity(0))
LAST = max(os.sched_getaffinity(0))


def test_a_list_is_of_all_servers_and_names_are_of_some() -> None:
    assert cpu_sets(None, "--server-cpus") == (None, {})
    assert cpu_sets(f"{FIRST}", "--server-cpus") == ((FIRST,), {})
    both = tuple(sorted({FIRST, LAST}))
    assert cpu_sets(f"router={FIRST},host={FIRST},{LAST}", "--server-cpus") == (
        None,
        {"router": (FIRST,), "host": both},
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0,host=1", "is not a list of CPUs by server"),
        ("=0", "is not a list of CPUs by server"),
        ("host=0,host=1", "is not a list of CPUs by server"),
        ("host=", "is not a list of CPUs"),
        ("host=x", "--server-cpus host= x is not a list of CPUs"),
        ("host=60000", "not all are usable here"),
    ],
)
def test_what_is_no_list_is_refused(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        cpu_sets(text, "--server-cpus")


def test_a_name_comes_before_a_role() -> None:
    options = BenchOptions(member_cpus={"host": (1,), "host-b": (2,)})
    found = {member.name: member_cpus(member, options) for member in plan_topology("routed-pair")}
    assert found == {"router": None, "host-a": (1,), "host-b": (2,)}


def test_a_server_that_is_not_there_is_refused() -> None:
    case = resolve(*find_one("tpcc-routed-pair"))
    check_supported([case], BenchOptions(member_cpus={"router": (0,), "host": (0,)}), apart=True)
    with pytest.raises(UsageError, match=r"--server-cpus replica=…: tpcc:tpcc-routed-pair has no such server"):
        check_supported([case], BenchOptions(member_cpus={"replica": (0,)}), apart=True)
