# SPDX-License-Identifier: Apache-2.0
"""Set-up where all is there already: silent, at once, and without a network."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY


@pytest.mark.skipif(shutil.which("dpkg") is None, reason="no capability: Debian's packages")
@pytest.mark.parametrize("step", ["demo", "check", "test"])
def test_what_is_there_is_not_installed_again(tmp_path: Path, step: str) -> None:
    for name in ("apt-get", "sudo"):
        (tmp_path / name).write_text("#!/bin/sh\necho asked: $0 $*\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        [REPOSITORY / ".ci/packages", step],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
