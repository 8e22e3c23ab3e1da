# SPDX-License-Identifier: Apache-2.0
"""Waiting for what is to come, in place of a time in which it usually has."""

from __future__ import annotations

import time
from typing import Any


def wait_until(condition: Any, what: str, patience_s: float = 60.0) -> Any:
    """What the condition gives once it gives something."""
    deadline = time.monotonic() + patience_s
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.02)
