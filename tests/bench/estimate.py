# SPDX-License-Identifier: Apache-2.0
"""How well the estimate's intervals hold: every published result is left out in turn and predicted from the others."""

from __future__ import annotations

from powerprof.energy.families import published_results
from powerprof.energy.results import coverage, spread_of
from tests.bench.figures import Verdict

_WANTED_PERCENT = 90.0
_ENOUGH = 10


def run(quick: bool) -> Verdict:
    """Prints a row a generation; misses where a generation with ten results or more is covered by less than 90 %."""
    del quick  # it measures nothing
    print("watts of one logical CPU [95 % interval], and results in the interval of the others")
    print(f"{'generation':<32}{'n':>4}{'idle':>22}{'':>6}{'full load':>22}{'':>6}{'slope':>22}")
    worst = 100.0
    for name, results in published_results().items():
        cells = []
        for what in ("idle", "full", "slope"):
            found, share = spread_of(results, what), coverage(results, what)
            cells.append(f"{found.typical:8.2f} [{found.low:5.2f},{found.high:6.2f}] {share:3.0f} %")
            if len(results) >= _ENOUGH:
                worst = min(worst, share)
        print(f"{name:<32}{len(results):>4}{''.join(cells)}")
    return Verdict(
        f"least covered generation with {_ENOUGH} results: {worst:.0f} %, at least {_WANTED_PERCENT:.0f} % wanted",
        met=worst >= _WANTED_PERCENT,
    )
