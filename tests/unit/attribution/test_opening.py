# SPDX-License-Identifier: Apache-2.0
"""The load of the tracer starts before the rest of `attribute` is imported, and unused libraries are not imported."""

from __future__ import annotations

import json
import subprocess
import sys

# Modules of Python 3.11 and libraries at each stage, with a margin of 5 %; our own modules are small files.
MOST_BEFORE_LOAD, MOST_BEFORE_WINDOW, MOST_WITH_REPORT = 222, 317, 320
_LIST = """
import json, sys
stages = []
for names in (
    ("powerprof.cli.app", "powerprof.cli.attribute", "powerprof.attribution.attribute"),
    ("powerprof.attribution.window",),
    ("powerprof.attribution.blame", "powerprof.report.attribution", "powerprof.report.kinds"),
):
    for name in names:
        __import__(name)
    stages.append(sorted(sys.modules))
print(json.dumps(stages))
"""


def test_each_stage_of_attribute_imports_only_what_it_needs() -> None:
    done = subprocess.run([sys.executable, "-c", _LIST], check=True, capture_output=True, text=True)
    load, window, report = (set(stage) for stage in json.loads(done.stdout))
    assert "powerprof.tracing.idle_program" in load
    # NumPy imports its masked arrays at the first `np.unique` without options.
    never = {"pymysql", "ssl", "rich", "jinja2", "scipy", "numpy.ma", "powerprof.experiment.bench", "tarfile"}
    assert not (never | {"numpy", "powerprof.attribution.window"}) & load
    assert not (never | {"powerprof.stacks.symbolizer", "powerprof.report.attribution"}) & window
    assert not (never | {"powerprof.diagnosis.collect"}) & report
    limits = (MOST_BEFORE_LOAD, MOST_BEFORE_WINDOW, MOST_WITH_REPORT)
    counts = [sum(not name.startswith("powerprof.") for name in stage) for stage in (load, window, report)]
    assert all(count <= limit for count, limit in zip(counts, limits, strict=True)), counts
