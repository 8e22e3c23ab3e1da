# SPDX-License-Identifier: Apache-2.0
"""The load of the tracer starts before the rest of `attribute` is imported."""

from __future__ import annotations

import json
import subprocess
import sys

# 250 on Python 3.11; with the modules of the window they would be 379.
MOST_MODULES = 265
_LIST = """
import json, sys
import powerprof.cli.app, powerprof.cli.attribute, powerprof.attribution.attribute
print(json.dumps(sorted(sys.modules)))
"""


def test_few_modules_are_imported_before_the_load_starts() -> None:
    done = subprocess.run([sys.executable, "-c", _LIST], check=True, capture_output=True, text=True)
    modules = json.loads(done.stdout)
    assert len(modules) <= MOST_MODULES, len(modules)
    late = {"numpy", "pymysql", "ssl", "powerprof.attribution.window", "powerprof.report.attribution"}
    assert not late & set(modules)
    assert "powerprof.tracing.idle_program" in modules
