# SPDX-License-Identifier: Apache-2.0
"""The manual page is that of the commands, and groff finds nothing wrong with it."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tools.pages import man_page


def test_the_manual_page_is_that_of_the_code() -> None:
    assert man_page.PAGE.read_text(encoding="utf-8") == man_page.render(), man_page.COMMAND


def test_it_formats_without_a_complaint() -> None:
    groff = shutil.which("groff")
    if groff is None:
        pytest.skip("no capability: groff (apt install groff-base)")
    done = subprocess.run(
        [groff, "-man", "-Tutf8", "-ww", str(man_page.PAGE)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == ""
    assert "powerprof idle" in done.stdout
