# SPDX-License-Identifier: Apache-2.0
"""Whether a disk of this host can be made slower."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from powerprof.database import disk_limits
from powerprof.system.errors import PowerprofError


def slows_loop_devices() -> bool:
    """Can a loop device be made here of a file whose disk a control group delays?"""
    if not os.access("/dev/loop-control", os.W_OK) or shutil.which("losetup") is None:
        return False
    return slows_disks()


def slows_disks() -> bool:
    """Can a control group delay the disk that temporary files are on?"""
    try:
        return bool(disk_limits.find_group_root() and disk_limits.find_disk(Path(tempfile.gettempdir())))
    except PowerprofError:
        return False
