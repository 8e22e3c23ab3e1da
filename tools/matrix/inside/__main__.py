# SPDX-License-Identifier: Apache-2.0
"""`python -m tools.matrix.inside JOB RESULTS`: the steps of one cell. JOB is JSON, see tools.matrix.cells.Cell."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tools.matrix.inside import measuring, world
from tools.matrix.inside.steps import SAID_ALL, Steps


def main() -> int:
    """All steps of the job. The results say how they went; the exit status only that they were all done."""
    job = json.loads(Path(sys.argv[1]).read_text())
    with Path(sys.argv[2]).open("w", encoding="utf-8") as results:
        steps = Steps(results, job["patience"] * job["time_scale"])
        steps.step("machine", lambda: world.prepare(job))
        if job["time_namespace"]:
            steps.prefix = ("unshare", "--time", "--monotonic", "100000", "--boottime", "100000", "--fork")
        for line in job["commands"]:
            steps.step(line, lambda line=line: measuring.command(steps, line))
        for name in [] if job["commands"] else job["steps"]:
            steps.step(name, lambda name=name: measuring.STEPS[name](steps, job))
        results.write(SAID_ALL)
    return 0


if __name__ == "__main__":
    sys.exit(main())
