# SPDX-License-Identifier: Apache-2.0
"""The printed systemd unit of the exporter, judged by systemd."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from powerprof.live.systemd_unit import format_unit


def test_the_exposure_score_of_the_unit_is_low(tmp_path: Path) -> None:
    unit = tmp_path / "powerprof-exporter.service"
    unit.write_text(format_unit(Path("/usr/bin/true")))
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--no-pager", str(unit)], capture_output=True, text=True
    )
    found = re.search(r"exposure level for .*: ([0-9.]+) ", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert float(found[1]) <= 3.2
