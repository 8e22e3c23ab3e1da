# SPDX-License-Identifier: Apache-2.0
"""powerprof as it measures: counters at 1 Hz and the cause tracer. `python -m tools.bench.driver SECONDS`."""

from __future__ import annotations

import sys
import time

from powerprof.measure import procfs
from powerprof.measure.cpuidle import CpuidleReader
from powerprof.tracing.idle import trace_exits

# A window of the tracer drains its buffer about as often.
_DRAIN_EVERY_S = 2


def main() -> None:
    """Say `ready` once everything is loaded; then one wake-up a second, in which the tracer is drained as well."""
    seconds = int(float(sys.argv[1]))
    with trace_exits() as tracer, CpuidleReader() as reader:
        print("ready", flush=True)
        start_s = time.monotonic()
        for second in range(1, seconds + 1):
            time.sleep(max(0.0, start_s + second - time.monotonic()))
            reader.snapshot()
            procfs.read_stat()
            if second % _DRAIN_EVERY_S == 0:
                tracer.read()


if __name__ == "__main__":
    main()
