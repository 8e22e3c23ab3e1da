# SPDX-License-Identifier: Apache-2.0
"""drgn is loaded without the network libraries of its wheel."""

from __future__ import annotations

import importlib.util
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from powerprof.stacks.drgn_library import remove_needed

_NETWORK = ("libcurl", "libssl-", "libcrypto-", "libldap", "libkrb5", "libgssapi", "libssh", "libsasl")
_MAPPED = """
import sys
from powerprof.stacks.drgn_library import load_drgn
load_drgn()
import drgn
drgn.Program(drgn.Platform(drgn.Architecture.X86_64))
print(*sorted({line.split("/")[-1].strip() for line in open("/proc/self/maps") if "/" in line}))
"""


def mapped(**environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", _MAPPED], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout.split()


def test_no_network_library_is_mapped() -> None:
    files = mapped()
    assert any(name.startswith("_drgn.") for name in files)
    assert not [name for name in files if name.startswith(_NETWORK)]


def test_without_lazy_binding_drgn_is_loaded_whole() -> None:
    assert any(name.startswith("_drgn.") for name in mapped(LD_BIND_NOW="1"))


def _wheel_library() -> bytes:
    spec = importlib.util.find_spec("drgn")
    assert spec is not None and spec.origin is not None
    return next((Path(spec.origin).parent.parent / "drgn.libs").glob("libdebuginfod-*")).read_bytes()


def test_only_the_named_library_is_no_longer_needed(tmp_path: Path) -> None:
    whole = _wheel_library()
    assert remove_needed(whole, b"libnothing") != whole  # its constructors
    files = []
    for data in (whole, remove_needed(whole, b"libcurl")):
        (tmp_path / "library").write_bytes(data)
        done = subprocess.run(["readelf", "-d", tmp_path / "library"], capture_output=True, text=True, check=True)
        files.append({line.split("[")[1].split("]")[0] for line in done.stdout.splitlines() if "(NEEDED)" in line})
    removed = files[0] - files[1]
    assert len(removed) == 1 and removed.pop().startswith("libcurl")


@pytest.mark.parametrize("length", [0, 63, 200])
def test_a_damaged_library_is_refused(length: int) -> None:
    with pytest.raises((ValueError, LookupError, struct.error)):
        remove_needed(_wheel_library()[:length], b"libcurl")
