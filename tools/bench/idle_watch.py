# SPDX-License-Identifier: Apache-2.0
"""The CPU time of `watch` on a nearly idle host: its own process (user and system) and its programs, over a minute.

CPU time changes less than wall time if other programs run. The first intervals load symbols and are left out.
"""

from __future__ import annotations

import resource
import time

from powerprof.database.private_server import PrivateServer
from powerprof.live.monitor import HostMonitor, MonitorPlan
from powerprof.system.targets import resolve
from tools.bench.figures import Verdict

TARGET_PERCENT = 0.2
_INTERVAL_S, _WARM_UP, _BUSY_HZ = 5.0, 6, 1_000


def _own_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def run(quick: bool) -> Verdict:
    """An idle private server, watched as `watch --pid` does."""
    with PrivateServer() as server:
        plan = MonitorPlan(
            target=resolve([str(server.pid)]),
            interval_s=_INTERVAL_S,
            keep_newest=True,
            max_cost=0.02,
            target_statements=True,
            settle=False,
        )
        with HostMonitor(plan, lambda text: None) as monitor:
            for _ in range(_WARM_UP):
                monitor.next()
            began_s, first_s, programs_s, rates = time.monotonic(), _own_s(), 0.0, []
            for _ in range(2 if quick else 12):
                interval = monitor.next()
                programs_s += interval.own.bpf_s or 0.0
                rates.append(interval.exits_hz or 0.0)
            passed_s, used_s = time.monotonic() - began_s, _own_s() - first_s
    process, programs = 100.0 * used_s / passed_s, 100.0 * programs_s / passed_s
    rate = sum(rates) / len(rates)
    return Verdict(
        f"watch uses {process:.2f} % of a CPU and its programs {programs:.2f} % at {rate:,.0f} idle exits/s "
        f"(target ≤ {TARGET_PERCENT:g} % together)",
        process + programs <= TARGET_PERCENT,
        f"the host is not nearly idle: {rate:,.0f} idle exits/s" if rate > _BUSY_HZ else "",
    )
