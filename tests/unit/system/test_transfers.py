# SPDX-License-Identifier: Apache-2.0
"""Downloads: their limits, on a server of this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from powerprof.system import fetching
from tests.programs.web import Web


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    with Web() as made:
        yield made


def _get(web: Web, path: str, limit_bytes: int, elsewhere: bool = True) -> tuple[int, bytes]:
    """Download in this process. Return the exit status and the content."""
    reading, writing = os.pipe()
    saved = os.dup(1)
    try:
        os.dup2(writing, 1)
        code = fetching._get(web.address + path, limit_bytes, elsewhere)
    finally:
        os.dup2(saved, 1)
        for handle in (saved, writing):
            os.close(handle)
    with os.fdopen(reading, "rb") as stream:
        return code, stream.read()


# One read of the client is at most 64 KiB, and a pipe holds as much.
@pytest.mark.parametrize(
    ("size", "limit_bytes", "code"), [(1000, 1000, 0), (0, 0, 0), (1001, 1000, 6), (1, 0, 6), (60_000, 65_536, 0)]
)
def test_a_download_has_at_most_its_bytes(web: Web, size: int, limit_bytes: int, code: int) -> None:
    web.answers["/file"] = (200, b"x" * size)
    done, content = _get(web, "/file", limit_bytes)
    assert done == code and (content == b"x" * size or code)


def test_the_limit_is_that_of_all_parts(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "_CHUNK", 100)
    web.answers["/file"] = (200, bytes(250))
    assert _get(web, "/file", 250) == (0, bytes(250))
    assert _get(web, "/file", 249) == (6, bytes(200))


def test_redirects_stay_at_the_host_and_the_web(web: Web) -> None:
    port = web.port
    web.answers |= {"/file": (200, b"x"), "/here": (302, "/file"), "/away": (302, f"http://localhost:{port}/file")}
    web.answers["/disk"] = (302, "file:///etc/passwd")
    assert _get(web, "/here", 9, False) == (0, b"x")
    assert _get(web, "/away", 9, False) == (5, b"")
    assert _get(web, "/away", 9, True) == (0, b"x")
    assert _get(web, "/disk", 9, True) == (5, b"")
    assert _get(web, "/none", 9) == (4, b"")
    web.answers["/broken"] = (500, b"")
    assert _get(web, "/broken", 9) == (5, b"")


def test_a_download_in_a_child_has_one_line_of_error(web: Web, tmp_path: Path) -> None:
    web.answers["/file"] = (200, bytes(50))
    with (tmp_path / "file").open("xb") as file:
        fetching.fetch(f"{web.address}/file", file.fileno(), limit_bytes=50, total_s=60.0)
        assert (tmp_path / "file").stat().st_size == 50
        with pytest.raises(FileNotFoundError, match="HTTP 404"):
            fetching.fetch(f"{web.address}/none", file.fileno(), limit_bytes=50, total_s=60.0)
        with pytest.raises(OSError, match="more than 49 bytes"):
            fetching.fetch(f"{web.address}/file", file.fileno(), limit_bytes=49, total_s=60.0)
