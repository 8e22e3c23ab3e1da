"""powerprof as it measures: the sampler at 1 Hz and the cause tracer. Run as `python -m tests.bench.driver SECONDS`."""

from __future__ import annotations

import sys

from powerprof.sources.cpuidle import CpuidleReader
from powerprof.sources.series import CpuidleSource, StatSource
from powerprof.timeline import Sampler
from powerprof.tracing.idle import IdleTracer
from powerprof.tracing.window import DRAIN_EVERY_S


class Draining:
    """Drains the tracer at the sampler's own deadlines: no wake-up more."""

    name = "tracer"
    columns = ()

    def __init__(self, tracer: IdleTracer) -> None:
        self._tracer = tracer
        self._reads = 0

    def read(self) -> tuple[float, ...]:
        """Nothing to report."""
        self._reads += 1
        if self._reads % max(1, int(DRAIN_EVERY_S)) == 0:
            self._tracer.drain()
        return ()


def main() -> None:
    """Say `ready` once everything is loaded."""
    with IdleTracer() as tracer, CpuidleReader() as reader:
        sampler = Sampler([CpuidleSource(reader), StatSource(), Draining(tracer)], 1.0)
        print("ready", flush=True)
        sampler.run(float(sys.argv[1]))


if __name__ == "__main__":
    main()
