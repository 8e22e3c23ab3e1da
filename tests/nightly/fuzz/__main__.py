# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.nightly.fuzz --inputs 1000000`: give many inputs to every loader; exit 1 after a wrong answer."""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.nightly.fuzz.campaign import share


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, help="how many in all (default: as many as --seconds allow)")
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--first", type=int, default=0, help="number of the first input: other numbers, other inputs")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", default="", help="loaders by name, with commas")
    parser.add_argument("--keep", type=Path, help="folder for the inputs that were answered wrongly")
    chosen = parser.parse_args()
    began = time.monotonic()
    count = None if chosen.inputs is None else -(-chosen.inputs // chosen.workers)
    tasks = [
        (chosen.first + number, chosen.workers, count, chosen.seconds, chosen.only) for number in range(chosen.workers)
    ]
    # Unlike Pool, an executor tells when a worker died.
    with ProcessPoolExecutor(chosen.workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        outcomes = list(pool.map(share, tasks))
    tried: collections.Counter[str] = sum((one.tried for one in outcomes), collections.Counter())
    refused: collections.Counter[str] = sum((one.refused for one in outcomes), collections.Counter())
    for name, number in tried.items():
        print(f"{name:<22}{number:>10,} inputs{refused[name]:>10,} refused")
    slowest = max(outcomes, key=lambda one: one.slowest_s)
    problems = [problem for one in outcomes for problem in one.problems]
    print(
        f"{tried.total():,} inputs over {len(tried)} loaders in {time.monotonic() - began:.0f} s: "
        f"{len(problems)} answered wrongly; slowest {slowest.slowest_s:.2f} s CPU ({slowest.slowest}), "
        f"largest process {max(one.peak_bytes for one in outcomes) / 1e6:.0f} MB"
    )
    groups: dict[tuple[str, str], list] = collections.defaultdict(list)
    for problem in problems:
        groups[problem.loader, problem.what].append(problem)
    for (name, what), found in sorted(groups.items(), key=lambda item: -len(item[1]))[:100]:
        print(f"  {name} {found[0].number}: {what} ({len(found)} times)")
        if chosen.keep:
            chosen.keep.mkdir(parents=True, exist_ok=True)
            shortest = min(found, key=lambda one: len(one.data))
            (chosen.keep / f"{name}-{shortest.number}").write_bytes(shortest.data)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
