# SPDX-License-Identifier: Apache-2.0
"""The storm on the server that it was found on. Deselected where that has not been fetched (tests/conftest.py)."""

from __future__ import annotations

import time

import msgspec
import pytest

from powerprof.database import sql
from powerprof.database.base import Server
from powerprof.database.builds import ServerBuild
from powerprof.experiment.bench import Bench
from powerprof.experiment.bench_options import BenchOptions
from powerprof.experiment.observers import CaseObservers
from powerprof.experiment.traced import count_by_thread, trace_condition
from powerprof.measure.sampling import WindowMeter
from powerprof.workloads.catalogue import find_condition
from powerprof.workloads.reading import Case, LoadedWorkload, resolve
from tests.programs.balance import counts_idle_exits

pytestmark = pytest.mark.alone  # judges the idleness or the speed of this host


def wakeups_hz(seconds: float) -> float:
    """Idle exits; where nothing counts them half of the switches: most go to the idle task, or come from it."""
    with WindowMeter() as meter:
        window = meter.measure(seconds)
    found = window.wakeups_hz
    if found is None:
        assert not counts_idle_exits()
        assert window.context_switches_hz is not None
        found = window.context_switches_hz / 2
    assert found
    return found


def calm(case: Case) -> LoadedWorkload:
    """The same workload without the storm, which would be begun anew."""
    definition = msgspec.structs.replace(case.workload.definition, storm=None)
    return msgspec.structs.replace(case.workload, definition=definition)


def mend(server: Server) -> None:
    with server.connect() as connection:
        sql.execute(connection, "STOP SLAVE", "SET GLOBAL server_id=3", "START SLAVE")


@pytest.mark.historical("mysql-5.5.9")
@pytest.mark.usefixtures("root_bpf")
def test_replicas_with_one_id_storm_until_one_gets_another(historical_build: ServerBuild) -> None:
    case = resolve(*find_condition("replica-duplicate-id"))
    with Bench([case], BenchOptions(server_build=historical_build), print) as bench:
        bench.enter(case)
        raging = []
        for _ in range(5):
            with CaseObservers(bench, case) as beside:
                beside.start()
                raging.append(wakeups_hz(2.0))
                shares, storm = beside.finish(2)
            assert storm is not None
            if storm.began and storm.raged_percent > 50 and raging[-1] >= 5000:
                break
        # 10,000 to 11,700/s on two idle CPUs; CPUs that other tests keep busy have fewer idle periods to end.
        assert max(raging) >= 3000, raging
        assert next(share for share in shares if share.name == "primary").connections_hz > 50

        window = trace_condition(bench, case, "a", 1.5, lambda said: None)
        threads = {thread for _, thread, _ in count_by_thread(window)}
        assert {"replica I/O thread", "replica SQL thread"} <= threads
        stacks = [[frame.label.partition("(")[0] for frame in row.stack] for row in window.attribution.wakeups]
        reconnecting = [stack for stack in stacks if "try_to_reconnect" in stack]
        assert any(stack.index("try_to_reconnect") < stack.index("handle_slave_io") for stack in reconnecting)
        said = msgspec.json.encode(window).decode()
        assert not any(server.login.password in said for server in bench.members(case).values())

        mend(bench.members(case)["replica-2"])
        time.sleep(1.5)
        mended = trace_condition(bench, msgspec.structs.replace(case, workload=calm(case)), "a", 1.5, lambda said: None)
        # Of the servers alone: what else this machine does is not theirs.
        assert sum(row.rate_hz for row in mended.attribution.wakeups) <= 200
