# SPDX-License-Identifier: Apache-2.0
"""Pages show commands as users type them, with sudo."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_command_needs_sudo() -> None:
    """Replace the fixture of the unit tests."""
