# SPDX-License-Identifier: Apache-2.0
"""The libraries that a process of root maps: none for the network, and none of the OpenSSL of drgn's wheel."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

_PROGRAM = Path(sys.executable).parent / "powerprof"
_FOREIGN = re.compile(
    r"libcurl|libssl-|libcrypto-|libldap|liblber|libkrb5|libk5crypto|libgssapi|libssh|libsasl|libnghttp2"
)


def read_maps(process: subprocess.Popen[bytes], until: Callable[[set[str]], bool]) -> set[str]:
    """Return the names of the files that the process and its children map, until a condition or the end."""
    names: set[str] = set()
    while process.poll() is None and not until(names):
        with contextlib.suppress(psutil.Error, OSError):
            for one in (psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)):
                with contextlib.suppress(psutil.Error, OSError):
                    lines = Path(f"/proc/{one.pid}/maps").read_text().splitlines()
                    names |= {line.rsplit("/", 1)[-1] for line in lines if "/" in line}
        time.sleep(0.02)
    return names


def has_drgn(names: set[str]) -> bool:
    return any(name.startswith("_drgn.") for name in names)


@pytest.mark.parametrize(
    "words",
    [
        ["attribute", "--system", "--duration", "2", "--no-save", "--meter", "none"],
        ["export", "--no-ask", "--interval", "1", "--listen", "127.0.0.1:0", "--meter", "none"],
    ],
    ids=lambda words: words[0],
)
def test_no_network_library(root_bpf: None, words: list[str]) -> None:
    ends = words[0] == "attribute"
    with subprocess.Popen([_PROGRAM, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            # The exporter runs until it is stopped. Its first interval names stacks.
            names = read_maps(process, lambda found: not ends and has_drgn(found))
        finally:
            process.terminate()
        assert process.stderr is not None
        errors = process.stderr.read().decode()
    assert has_drgn(names), errors
    assert not [name for name in names if _FOREIGN.search(name)]
