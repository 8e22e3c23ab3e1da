# SPDX-License-Identifier: Apache-2.0
"""The line of progress on the terminal: the next text replaces it."""

from __future__ import annotations

import sys
from contextlib import suppress

CLEAR_LINE = "\r\x1b[K"


class Progress:
    """Whether a line of progress is on the terminal."""

    is_shown = False


progress = Progress()


def clear_progress() -> None:
    """Remove the line of progress before other text."""
    if progress.is_shown:
        progress.is_shown = False
        with suppress(OSError, ValueError):  # the terminal may be gone
            print(CLEAR_LINE, file=sys.stderr, end="", flush=True)
