# SPDX-License-Identifier: Apache-2.0
"""A C library that only a test's program maps: powerprof probes no file that processes of other accounts map."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def own_libc() -> Iterator[dict[str, str]]:
    """The environment of a program that gets a copy of libc.so.6."""
    folder = Path(tempfile.mkdtemp(prefix="libc-", dir="/tmp"))
    folder.chmod(0o755)
    match = re.search(r"(/\S+/libc\.so\.6)$", Path("/proc/self/maps").read_text(), re.MULTILINE)
    assert match is not None
    shutil.copy(match[1], folder)
    try:
        yield {"LD_LIBRARY_PATH": str(folder)}
    finally:
        shutil.rmtree(folder)
