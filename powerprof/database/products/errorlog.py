# SPDX-License-Identifier: Apache-2.0
"""The end of a server's error log in one line, for an error message."""

from __future__ import annotations

import os
import re

from powerprof.files import reason_of
from powerprof.untrusted import printable

_TAIL_BYTES = 65536
# MariaDB `2026-11-20 10:45:24 0 `, MySQL 5.5 `261120 10:45:24 `, 8.0 `2026-11-20T10:45:24.123456Z 0 `.
_STAMP = re.compile(r"^(\d{4}-\d\d-\d\d[ T]+\d{1,2}:\d\d:\d\d\S*|\d{6} +\d{1,2}:\d\d:\d\d)\s+(\d+ )?")
# Consequences, not causes.
_EMPTY_WORDS = (
    "Aborting",
    "Plugin 'InnoDB' init function returned error.",
    "Plugin 'InnoDB' registration as a STORAGE ENGINE failed.",
    "Unknown/unsupported storage engine: InnoDB",
)


def tail(log: int, lines: int = 3) -> str:
    """The last errors in an open log, or its last lines where it has none; at most 600 printable characters.

    By its descriptor: the name is the server's, which could make it lead to a file that only root may read.
    """
    try:
        text = os.pread(log, _TAIL_BYTES, max(0, os.fstat(log).st_size - _TAIL_BYTES)).decode(errors="replace")
    except OSError as error:
        return f"its log cannot be read ({reason_of(error)})"
    plain = [_plain(line) for line in text.splitlines() if line.strip()]
    errors = [line.replace("[ERROR] ", "") for line in plain if "[ERROR]" in line]
    causes = [line for line in errors if not line.endswith(_EMPTY_WORDS)]
    return " / ".join((causes or errors or plain)[-lines:])[:600] or "it reported nothing"


def disk_full(text: str) -> bool:
    """True where the log speaks of ENOSPC (28) or EDQUOT (122)."""
    return re.search(r"No space left|out of disk space|err(or|no):? (28|122)\b", text) is not None


def _plain(line: str) -> str:
    """Without time and thread number; a control character becomes a blank."""
    return printable(_STAMP.sub("", line), " ").strip()[:300]
