# SPDX-License-Identifier: Apache-2.0
"""The systemd unit of the exporter."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from powerprof.live.exporter import format_unit, list_capabilities


def test_the_exposure_score_of_the_unit_is_low(tmp_path: Path) -> None:
    unit = tmp_path / "powerprof-exporter.service"
    unit.write_text(format_unit(Path("/usr/bin/true")))
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--no-pager", str(unit)], capture_output=True, text=True
    )
    found = re.search(r"exposure level for .*: ([0-9.]+) ", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert float(found[1]) <= 3.2


def test_the_capabilities_of_the_unit() -> None:
    assert list_capabilities() == [
        "CAP_BPF",
        "CAP_CHECKPOINT_RESTORE",
        "CAP_DAC_READ_SEARCH",
        "CAP_PERFMON",
        "CAP_SYSLOG",
        "CAP_SYS_PTRACE",
        "CAP_SYS_RESOURCE",
    ]
