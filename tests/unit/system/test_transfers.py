# SPDX-License-Identifier: Apache-2.0
"""Downloads and sent profiles: their limits, on a server of this process, and the answers of collectors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.system import fetching, sending
from powerprof.system.errors import PowerprofError, UsageError
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


@pytest.mark.parametrize(
    ("status", "code"), [(200, 0), (202, 0), (204, 0), (299, 0), (301, 5), (400, 5), (404, 5), (503, 5)]
)
def test_a_profile_is_accepted_by_any_success(web: Web, status: int, code: int) -> None:
    web.answers["/v1development/profiles"] = (status, b"")
    for path in ("", "/"):
        assert sending._post(web.address + path, b"profile") == code
    web.answers["/own?a=b"] = (status, b"")
    assert sending._post(f"{web.address}/own?a=b", b"other") == code
    kind = "application/x-protobuf"
    profiles = [("/v1development/profiles", kind, b"profile")] * 2
    assert web.received == [*profiles, ("/own?a=b", kind, b"other")]


def _varint(number: int) -> bytes:
    parts = []
    while True:
        parts.append((number & 0x7F) | (0x80 if number > 0x7F else 0))
        number >>= 7
        if not number:
            return bytes(parts)


def _field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


@given(st.integers(0, 2**63 - 1), st.text(max_size=200))
def test_a_rejection_has_its_count_and_reason(count: int, reason: str) -> None:
    partial = _field(1, count) + _field(2, reason.encode())
    assert sending._parse_rejection(_field(1, partial)) == (count, reason)
    assert sending._parse_rejection(_field(7, b"later") + _field(1, partial)) == (count, reason)


@pytest.mark.parametrize(
    "answer", [b"", b"\x0a", b"\x0a\x05\x08", b"\xff" * 12, b"<html>", _field(1, 5), _field(1, _field(1, b"x"))]
)
def test_another_answer_is_no_rejection(answer: bytes) -> None:
    assert sending._parse_rejection(answer)[0] == 0


def test_a_rejected_profile_is_an_error_without_the_path(web: Web) -> None:
    web.answers["/s3cret"] = (200, _field(1, _field(1, 3) + _field(2, b"too\nold")))
    with pytest.raises(PowerprofError, match=r"it rejected 3 of the profiles: too\?old") as error:
        sending.send(f"{web.address}/s3cret", b"profile")
    assert "s3cret" not in error.value.message and web.address in error.value.message
    with pytest.raises(PowerprofError, match="HTTP 404"):
        sending.send(f"{web.address}/none", b"profile")


@pytest.mark.parametrize(
    ("target", "is_address"),
    [
        ("http://localhost:4318", True),
        ("https://h/path?x=1", True),
        ("HTTP://h", True),
        ("profile.pb", False),
        ("./host:4318", False),
        ("-", False),
        ("dir/file", False),
    ],
)
def test_an_address_differs_from_a_file(target: str, is_address: bool) -> None:
    assert sending.is_address(target) is is_address


@pytest.mark.parametrize(
    "target",
    [
        *("localhost:4318", "host.example:4318/path", "profile", "ftp://h", "http://", "http://h:0", "http://h:99999"),
        *("http://u:p@h", "http://h/a b", "http://h/#x", "http://h/é", "http://h/" + "x" * 2000),
    ],
)
def test_unusable_addresses_are_refused(target: str) -> None:
    with pytest.raises(UsageError, match="--otlp") as error:
        sending.is_address(target)
    assert ":p@" not in error.value.message
