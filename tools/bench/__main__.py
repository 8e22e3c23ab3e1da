# SPDX-License-Identifier: Apache-2.0
"""Prints the tables. Ends with 1 where a figure that can be believed misses its target."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable

from tools.bench import (
    attribution,
    bounded,
    drivers,
    estimate,
    exporter,
    idle_watch,
    observer,
    opening,
    queries,
    rate,
    startup,
    steadiness,
    turns,
)
from tools.bench.figures import Verdict


def main() -> int:
    """All benchmarks, or those that are named."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench", description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="startup, opening, rate, estimate, observer, steadiness, turns-full, turns-half, bounded, attribution, "
        "attribution-idle, queries, queries-samples, queries-bounded, exporter, exporter-busy, watch-idle, "
        "driver-tpcc, driver-postgresql (all)",
    )
    parser.add_argument("--quick", action="store_true", help="short windows, to see that it works: nothing to believe")
    given = parser.parse_args()
    benches: dict[str, Callable[[bool], Verdict | list[Verdict]]] = {
        "startup": startup.run,
        "opening": opening.run,
        "rate": rate.run,
        "estimate": estimate.run,
        "observer": observer.run,
        "steadiness": steadiness.run,
        "turns-full": turns.run_full,
        "turns-half": turns.run_half,
        "bounded": bounded.run,
        "queries": queries.run,
        "queries-samples": queries.run_samples,
        "exporter": exporter.run,
        "exporter-busy": exporter.run_busy,
        "watch-idle": idle_watch.run,
        "queries-bounded": queries.run_bounded,
        "driver-tpcc": drivers.run_tpcc,
        "driver-postgresql": drivers.run_pgbench,
        "attribution": attribution.run_loaded,
        "attribution-idle": attribution.run_idle,
    }
    unknown = set(given.names) - set(benches)
    if unknown:
        parser.error(f"no benchmark {', '.join(sorted(unknown))}")
    load = " ".join(f"{value:.2f}" for value in os.getloadavg())
    print(f"Linux {platform.release()}, {os.cpu_count()} CPUs, load average {load}")
    if given.quick:
        print("--quick: windows are too short for a verdict")
    verdicts: list[Verdict] = []
    for name in given.names or benches:
        print(flush=True)
        found = benches[name](given.quick)
        verdicts += found if isinstance(found, list) else [found]
    print()
    for verdict in verdicts:
        print(f"{verdict.word(given.quick):<14}{verdict.text}")
        if verdict.doubt:
            print(f"{'':14}{verdict.doubt}")
    return 1 if not given.quick and any(verdict.missed for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
