# SPDX-License-Identifier: Apache-2.0
"""Reads of memory, stacks and files by the reader's child, on this process and on made-up files."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.system import reader_child
from powerprof.system.reader_process import Opened, ReaderProcess

_PAGE = mmap.PAGESIZE


@pytest.fixture
def own_memory() -> Iterator[int]:
    handle = os.open("/proc/self/mem", os.O_RDONLY)
    yield handle
    os.close(handle)


class _Pages:
    """Two pages of memory, and a page after them that cannot be read: its file has become shorter."""

    def __init__(self) -> None:
        handle = os.memfd_create("pages")
        os.truncate(handle, 3 * _PAGE)
        self._map = mmap.mmap(handle, 3 * _PAGE)
        self.data = os.urandom(2 * _PAGE)
        self._map[: 2 * _PAGE] = self.data
        self.at = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        os.truncate(handle, 2 * _PAGE)
        os.close(handle)


@pytest.mark.parametrize("offset", [0, 8, _PAGE - 24, _PAGE, 2 * _PAGE - 8])
def test_a_stack_ends_at_the_first_unreadable_page(own_memory: int, offset: int) -> None:
    pages = _Pages()
    assert reader_child._copy_stack(own_memory, pages.at + offset) == pages.data[offset:]
    assert reader_child._copy_stack(own_memory, pages.at + 2 * _PAGE) == b""
    assert reader_child._copy_stack(own_memory, 1 << 63) == b""


def test_a_long_stack_has_its_limit(own_memory: int) -> None:
    memory = mmap.mmap(-1, 8 * _PAGE)
    memory[:] = data = os.urandom(8 * _PAGE)
    at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert reader_child._copy_stack(own_memory, at + 40) == data[40 : 40 + 0x4000]


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("35 0x1 0x2 0x3 0x4 0x5 0x6 0x7ffc00 0x401000", (0x401000, 0x7FFC00)),
        ("-1 0x7ffc00 0x401000", (0x401000, 0x7FFC00)),
        ("running", None),
        ("", None),
        ("-1 0x7ffc00 where", None),
        ("1 2 3 4", None),
    ],
)
def test_a_position_is_instruction_and_stack(tmp_path: Path, text: str, position: tuple[int, int] | None) -> None:
    (tmp_path / "syscall").write_text(text)
    assert reader_child._read_position(tmp_path) == position
    assert reader_child._read_position(tmp_path / "none") is None


@pytest.fixture(scope="module")
def reader() -> Iterator[ReaderProcess]:
    with ReaderProcess() as started:
        yield started


def test_a_file_has_the_status_of_the_kernel(reader: ReaderProcess, tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_bytes(os.urandom(12_345))
    os.utime(place, ns=(7, 1_234_567_890_123_456_789))
    place.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(place, 1001, 1002)
    kernel = place.stat()
    shown = reader.status(place)
    opened = reader.open_in_root(os.getpid(), tmp_path, "/file")
    assert shown is not None and isinstance(opened, Opened)
    with opened:
        for status in (shown, opened):
            assert (status.size_bytes, status.mtime_ns) == (12_345, 1_234_567_890_123_456_789)
            assert (status.device, status.inode, status.mode) == (kernel.st_dev, kernel.st_ino, kernel.st_mode)
            assert (status.uid, status.gid) == (kernel.st_uid, kernel.st_gid)
            assert status.stored_bytes == 512 * kernel.st_blocks and not status.is_copy
        assert os.pread(opened.fd, 20_000, 0) == place.read_bytes()


@given(size=st.integers(0, 60), most=st.integers(1, 70), from_end=st.booleans())
def test_the_first_or_last_bytes_of_a_file_are_read(
    reader: ReaderProcess, tmp_path_factory: pytest.TempPathFactory, size: int, most: int, from_end: bool
) -> None:
    place = tmp_path_factory.getbasetemp() / "bytes"
    data = bytes(range(size))
    place.write_bytes(data)
    expected = data[max(0, size - most) :] if from_end else data[:most]
    assert reader.read(os.getpid(), place, most, from_end=from_end) == expected


def test_memory_maps_and_open_files_of_a_process_are_read(reader: ReaderProcess, tmp_path: Path) -> None:
    pid, pages = os.getpid(), _Pages()
    places = [(pages.at + 8, 100), (0, 8), (pages.at, 0), (pages.at + 2 * _PAGE - 8, 8)]
    assert reader.memory(pid, places) == [pages.data[8:108], b"", b"", pages.data[-8:]]
    text, vdso = reader.maps(pid)
    assert b"[vdso]" in text and b"[stack]" not in text, "only executable mappings"
    assert (vdso or b"")[:4] == b"\x7fELF"
    with (tmp_path / "opened").open("w") as file:
        status = os.fstat(file.fileno())
        assert reader.open_files(pid)[status.st_dev, status.st_ino] == str(tmp_path / "opened")
    assert sorted(reader.names(tmp_path, "/", 10) or []) == ["opened"]
    assert reader.names(tmp_path, "/none", 10) is None
    (tmp_path / "link").symlink_to("opened")
    assert reader.real_path(pid, str(tmp_path / "link")) == tmp_path / "opened"
    assert reader.open_in_root(pid, tmp_path, "/link", follow=False) == "not a regular file"


@pytest.mark.parametrize(
    ("uid", "mode", "is_sent"), [(0, 0o644, True), (1001, 0o644, False), (0, 0o664, False), (0, 0o646, False)]
)
def test_a_passwd_is_sent_if_only_root_can_write_it(
    root: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid: int, mode: int, is_sent: bool
) -> None:
    passwd = tmp_path / "root/etc/passwd"
    passwd.parent.mkdir(parents=True)
    passwd.write_text("mysql:x:112:\n")
    passwd.chmod(mode)
    os.chown(passwd, uid, 0)
    (tmp_path / "ns").symlink_to("/proc/self/ns")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        monkeypatch.setattr(reader_child, "_OUT", theirs, raising=False)
        base = "x" + os.fsencode(tmp_path).hex()
        if not is_sent:
            with pytest.raises(OSError) as error:
                reader_child._passwd(base)
            assert error.value.errno == errno.EPERM
            return
        reader_child._passwd(base)
        assert ours.recv(100)[5:] == b"mysql:x:112:\n"
