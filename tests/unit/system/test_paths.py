# SPDX-License-Identifier: Apache-2.0
"""Places of inputs and outputs, the caller's account, and folders that only some accounts may write."""

from __future__ import annotations

import os
import subprocess
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from powerprof.system import caller, folders, paths
from powerprof.system.caller import HostUser, is_system_account, unprivileged
from powerprof.system.errors import PowerprofError, UsageError
from powerprof.system.folder_copies import CopyRefused, CopyRules, copy_folder
from powerprof.system.folders import Folder, check_free, only_root_writes

ALICE = HostUser(1001, 1002, Path("/home/alice"), "alice")
NOBODY = HostUser(65534, 65534, Path("/"), "nobody")


@pytest.mark.parametrize(
    ("sysfs", "procfs", "is_this_host", "has_one_host"),
    [
        (None, None, True, True),
        ("/sys", "/proc", True, True),
        ("/sys/", None, True, True),
        ("/rec/sys", "/rec/proc", False, True),
        ("/rec/sys", None, False, False),
        (None, "/rec/proc", False, False),
        ("/sys", "/rec/proc", False, True),
    ],
)
def test_figures_of_two_hosts_never_mix(
    monkeypatch: pytest.MonkeyPatch, sysfs: str | None, procfs: str | None, is_this_host: bool, has_one_host: bool
) -> None:
    for name, value in (("POWERPROF_SYSFS", sysfs), ("POWERPROF_PROCFS", procfs)):
        monkeypatch.delenv(name, raising=False)
        if value:
            monkeypatch.setenv(name, value)
    assert (paths.is_this_host(), paths.has_one_host()) == (is_this_host, has_one_host)
    assert (paths.sysfs(), paths.procfs()) == (Path(sysfs or "/sys"), Path(procfs or "/proc"))


def test_root_saves_values_that_a_boot_resets_where_it_empties(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert paths.changed_dir() == Path("/run/powerprof-changed")
    assert paths.changed_dir(outlasts=True) == Path("/var/lib/powerprof-changed")
    assert paths.changed_dirs() == [paths.changed_dir(), paths.changed_dir(outlasts=True)]
    monkeypatch.setattr(os, "geteuid", lambda: 1001)
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert paths.changed_dirs() == [Path("/state/powerprof/changed")]


@pytest.mark.parametrize(
    ("uid", "sudo", "cache", "place"),
    [
        (0, "", None, "/var/cache/powerprof"),
        (0, "", "/c", "/c/powerprof"),
        (0, "", "relative", "/var/cache/powerprof"),
        (0, "1001", "/c", "/var/cache/powerprof"),
        (1001, "", "/c", "/c/powerprof"),
        (1001, "", None, "/home/alice/.cache/powerprof"),
    ],
)
def test_root_trusts_no_cache_of_a_caller(
    monkeypatch: pytest.MonkeyPatch, accounts: None, uid: int, sudo: str, cache: str | None, place: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    for name, value in (("SUDO_UID", sudo), ("XDG_CACHE_HOME", cache), ("HOME", "/home/alice")):
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name, raising=False)
    assert paths.cache_dir() == Path(place)


@pytest.fixture
def accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this host the accounts root, alice (1001) and nobody."""
    known = {0: HostUser(0, 0, Path("/root"), "root"), 1001: ALICE, 65534: NOBODY}
    monkeypatch.setattr(caller, "account_of", known.get)
    monkeypatch.delenv("HOME", raising=False)


@pytest.mark.parametrize(
    ("uid", "sudo", "name", "helper"),
    [
        (0, "", "root", "nobody"),
        (0, "1001", "alice", "alice"),
        (0, "0", "root", "nobody"),
        (0, "4711", "root", "nobody"),
        (0, "x", "root", "nobody"),
        (0, "²", "root", "nobody"),
        (0, str(1001 + (1 << 32)), "root", "nobody"),
        (1001, "0", "alice", None),
        (1001, "65534", "alice", None),
        (7, "", None, None),
    ],
)
def test_the_caller_is_the_account_that_called_sudo(
    monkeypatch: pytest.MonkeyPatch, accounts: None, uid: int, sudo: str, name: str | None, helper: str | None
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setattr(os, "getegid", lambda: uid)
    monkeypatch.setenv("SUDO_UID", sudo)
    assert caller.caller().name == name
    assert caller.is_delegated() is (uid == 0 and name == "alice")
    account = unprivileged()
    assert (account.name if account else None) == helper


@pytest.mark.parametrize(
    ("text", "first"), [("UID_MIN\t\t\t 500\n", 500), ("#UID_MIN 7\nSYS_UID_MIN 100\n", 1000), ("", 1000)]
)
def test_people_have_accounts_from_the_hosts_first_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, first: int
) -> None:
    (tmp_path / "login.defs").write_text(text)
    monkeypatch.setattr(caller, "_DEFINITIONS", tmp_path / "login.defs")
    caller._read_uid_min.cache_clear()
    try:
        assert [is_system_account(uid) for uid in (0, first - 1, first, 65534)] == [True, True, False, False]
    finally:
        caller._read_uid_min.cache_clear()


@pytest.mark.parametrize(
    ("value", "place"),
    [("/own", "/own/powerprof"), ("relative", "/home/alice/{}/powerprof"), ("", "/home/alice/{}/powerprof")],
)
def test_a_relative_xdg_folder_is_ignored(
    monkeypatch: pytest.MonkeyPatch, accounts: None, value: str, place: str
) -> None:
    """XDG Base Directory Specification: all paths must be absolute."""
    monkeypatch.setattr(os, "geteuid", lambda: 1001)
    monkeypatch.setenv("HOME", "/home/alice")
    for variable in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(variable, value)
    assert paths.state_dir() == Path(place.format(".local/state"))
    assert paths.config_dir() == Path(place.format(".config"))
    assert paths.cache_dir() == Path(place.format(".cache"))


def test_missing_places_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    paths.check_places()
    for variable in ("TMPDIR", "POWERPROF_SYSFS", "POWERPROF_PROCFS"):
        for name, reason in (("none", "no such directory"), ("file", "not a directory")):
            with monkeypatch.context() as patch, pytest.raises(UsageError, match=f"^{variable}=.*: {reason}"):
                patch.setenv(variable, str(tmp_path / name))
                paths.check_places()


@pytest.mark.parametrize(
    ("needed", "blocks", "is_free"), [(200 * 4096, 1000, True), (200 * 4096 + 1, 1000, False), (10**12, 0, True)]
)
def test_room_that_is_reserved_for_root_is_no_room(
    monkeypatch: pytest.MonkeyPatch, needed: int, blocks: int, is_free: bool
) -> None:
    system = SimpleNamespace(f_blocks=blocks, f_bavail=200, f_bfree=300, f_frsize=4096, f_bsize=512)
    monkeypatch.setattr(os, "fstatvfs", lambda _: system)
    if is_free:
        check_free(0, needed)
    else:
        with pytest.raises(OSError, match="No space left"):
            check_free(0, needed)


@pytest.mark.parametrize(
    ("mode", "uid", "is_file", "reason"),
    [
        (0o755, 0, True, None),
        (0o775, 0, True, "others than root may write to"),
        (0o757, 0, True, "others than root may write to"),
        (0o755, 1001, True, "belongs to user 1001"),
        (0o1777, 0, False, None),
        (0o777, 0, False, "others than root may write to"),
        (0o1777, 0, True, "others than root may write to"),
        (0o1777, 1001, False, "belongs to user 1001"),
    ],
)
def test_only_root_writes_its_programs(
    root: None, tmp_path: Path, mode: int, uid: int, is_file: bool, reason: str | None
) -> None:
    place = tmp_path / "folder/program" if is_file else tmp_path / "folder"
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/program").touch(0o755)
    os.chown(place, uid, 0)
    place.chmod(mode)
    shown = only_root_writes(tmp_path / "folder/program")
    assert (shown is None) if reason is None else (shown or "").find(reason.split(" /")[0]) >= 0
    assert only_root_writes(tmp_path / "none") == "no such file or directory"


def test_a_link_of_another_account_is_not_trusted(root: None, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/bin/sh")
    assert only_root_writes(tmp_path / "link") is None
    os.chown(tmp_path / "link", 1001, 0, follow_symlinks=False)
    assert "belongs to user 1001" in (only_root_writes(tmp_path / "link") or "")


def _tree(folder: Path) -> Path:
    (folder / "inner").mkdir(parents=True)
    (folder / "inner/data").write_bytes(bytes(700))
    (folder / "program").write_bytes(bytes(300))
    (folder / "program").chmod(0o755)
    return folder


# Three entries: a folder of `size` bytes by lstat, and files of 700 and 300 bytes.
@pytest.mark.parametrize(
    ("files", "more_bytes", "refused"), [(3, 0, False), (2, 0, True), (3, -1, True), (9, 99, False)]
)
def test_a_copy_has_at_most_its_files_and_bytes(tmp_path: Path, files: int, more_bytes: int, refused: bool) -> None:
    source = _tree(tmp_path / "source")
    most = 1000 + (source / "inner").lstat().st_size + more_bytes
    rules = CopyRules(None, files, most)
    if refused:
        with pytest.raises(CopyRefused, match=f"more than {files} files"):
            copy_folder(source, tmp_path / "copy", rules)
        return
    copy_folder(source, tmp_path / "copy", rules)
    sizes = {str(path.relative_to(tmp_path / "copy")): path.stat().st_size for path in (tmp_path / "copy").rglob("*")}
    assert (sizes["inner/data"], sizes["program"]) == (700, 300)
    modes = [(tmp_path / "copy" / name).stat().st_mode & 0o777 for name in ("inner", "program", "inner/data")]
    assert modes == [0o700, 0o700, 0o600]


@pytest.mark.parametrize(("name", "depth"), [("n" * 255, 4), ("n" * 255, 17), ("n", 512), ("n", 1500)])
def test_a_copy_has_no_path_that_is_too_long_or_too_deep(tmp_path: Path, name: str, depth: int) -> None:
    (tmp_path / "source").mkdir()
    here = os.open(tmp_path / "source", os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=here)
        here, outer = os.open(name, os.O_RDONLY, dir_fd=here), here
        os.close(outer)
    os.close(here)
    refused = pytest.raises(CopyRefused, match="a path of more than 1,024 bytes")
    with nullcontext() if (len(name) + 1) * depth <= 1024 else refused:
        copy_folder(tmp_path / "source", tmp_path / "copy", CopyRules(None, 2000))
    subprocess.run(["rm", "-rf", tmp_path / "source", tmp_path / "copy"], check=True)


def test_links_are_copied_as_links_only_on_request(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source/link").symlink_to("/etc/passwd")
    copy_folder(tmp_path / "source", tmp_path / "copy", CopyRules(None, 9, links=True))
    assert os.readlink(tmp_path / "copy/link") == "/etc/passwd"
    with pytest.raises(OSError, match="Too many levels"):
        copy_folder(tmp_path / "source", tmp_path / "other", CopyRules(None, 9))


def test_a_replaced_file_is_whole_or_the_old_one(tmp_path: Path) -> None:
    with Folder.open(tmp_path) as folder:
        folder.write("file", b"old")
        with pytest.raises(RuntimeError), folder.replacing("file") as handle:
            os.write(handle, b"half")
            raise RuntimeError
        assert folder.names() == ["file"] and folder.read("file", 3) == b"old"
        with pytest.raises(OSError, match="File too large"):
            folder.read("file", 2)
        folder.check_room(1)
        for name in ("", ".", "..", "a/b"):
            with pytest.raises(OSError, match="not a single name"):
                folder.write(name, b"x")
    assert folders.open_parent(tmp_path / "new")[1] == "new"


def test_a_cache_that_others_may_write_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SUDO_UID", raising=False)
    assert paths.cache_folder("kind") == tmp_path / "powerprof/kind"
    (tmp_path / "powerprof/kind").chmod(0o770)
    with pytest.raises(PowerprofError, match="cannot keep a cache in"):
        paths.cache_folder("kind")
