# SPDX-License-Identifier: Apache-2.0
"""What root writes for somebody: with that account's rights, and where a link of others leads, nothing."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from pathlib import Path

import msgspec
import pytest

from powerprof.cli.output import write_json
from powerprof.live.metrics_server import MetricsServer
from powerprof.model.runs import RunStore
from powerprof.report.files import write_output
from powerprof.system import paths
from powerprof.system.errors import PowerprofError
from powerprof.system.folders import Folder, only_root_writes
from tests.conftest import REPOSITORY
from tests.system.safety.conftest import UID, Attacker

_ROUNDS = 60


@pytest.fixture
def under_sudo(attacker: Attacker, monkeypatch: pytest.MonkeyPatch) -> Attacker:
    """Root by sudo of that account."""
    monkeypatch.setenv("SUDO_UID", str(UID))
    monkeypatch.setenv("XDG_STATE_HOME", str(attacker.home / "state"))
    return attacker


def _untouched(attacker: Attacker) -> bool:
    info = attacker.secret.stat()
    mode = stat.S_IMODE(info.st_mode)
    return (attacker.secret.read_text(), info.st_uid, mode) == ("of root\n", 0, 0o600)


@pytest.mark.parametrize("writer", ["html", "json"])
def test_a_planted_link_is_not_followed(attacker: Attacker, writer: str) -> None:
    """As plain root, which may write everywhere."""
    target = attacker.home / "report"
    attacker.does(lambda: target.symlink_to(attacker.secret))
    with pytest.raises(PowerprofError, match=f"cannot write {target} .a symbolic link of user {UID} is in the path"):
        if writer == "html":
            write_output(str(target), b"overwritten")
        else:
            write_json({"over": "written"}, str(target))
    assert _untouched(attacker)


def test_a_planted_folder_is_not_entered(attacker: Attacker) -> None:
    attacker.does(lambda: (attacker.home / "out").symlink_to(attacker.secret.parent))
    with pytest.raises(PowerprofError, match="a symbolic link of user"):
        write_output(str(attacker.home / "out/secret"), b"overwritten")
    assert _untouched(attacker)


def test_a_pipe_of_somebody_else_gets_nothing(attacker: Attacker) -> None:
    pipe = attacker.home / "pipe"
    attacker.does(lambda: os.mkfifo(pipe))
    with pytest.raises(PowerprofError, match=f"it is a special file of user {UID}"):
        write_output(str(pipe), b"for root's eyes")


def test_links_of_ones_own_are_followed(attacker: Attacker, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "near").symlink_to("real")
    (tmp_path / "latest").symlink_to("near/report")
    write_output(str(tmp_path / "latest"), b"text")
    assert (tmp_path / "real/report").read_bytes() == b"text"


def test_under_sudo_outputs_are_the_callers_and_no_more_than_the_caller_may(under_sudo: Attacker) -> None:
    write_output(str(under_sudo.home / "mine"), b"text")
    assert (under_sudo.home / "mine").stat().st_uid == UID
    for target in (under_sudo.secret, Path("/etc/powerprof-test")):
        with pytest.raises(PowerprofError, match="permission denied") as caught:
            write_output(str(target), b"overwritten")
        assert caught.value.hint == (
            "under sudo, files are written as nobody: choose a folder of this user, or run as root itself"
        )
    assert _untouched(under_sudo)
    under_sudo.does(lambda: (under_sudo.home / "link").symlink_to(under_sudo.secret))
    with pytest.raises(PowerprofError, match="cannot write"):
        write_output(str(under_sudo.home / "link"), b"overwritten")
    assert _untouched(under_sudo)


def test_an_output_between_a_folder_and_a_link(attacker: Attacker) -> None:
    """The folder is exchanged for a link to root's, again and again, while root writes into it."""
    place = attacker.folder("out")
    with attacker.keeps_doing(lambda: _flip(place, attacker.secret.parent)):
        for _ in range(_ROUNDS):
            with contextlib.suppress(PowerprofError):
                write_output(str(place / "secret"), b"overwritten")
    assert _untouched(attacker)


def _flip(place: Path, elsewhere: Path) -> None:
    """One exchange there and back; nothing is ever missing for long."""
    aside, link = place.with_name("aside"), place.with_name("link")
    if not link.is_symlink():
        link.symlink_to(elsewhere)
    place.rename(aside)
    link.rename(place)
    place.rename(link)
    aside.rename(place)


def test_saving_runs_between_a_folder_and_a_link(under_sudo: Attacker) -> None:
    """$XDG_STATE_HOME is exchanged for a link to a folder of root's: nothing there is made or given away."""
    state = under_sudo.folder("state")
    victim = under_sudo.secret.parent
    (victim / "powerprof").mkdir(mode=0o700)
    (victim / "powerprof/runs").mkdir(mode=0o700)
    with under_sudo.keeps_doing(lambda: _flip(state, victim)):
        for _ in range(_ROUNDS):
            with contextlib.suppress(PowerprofError):
                RunStore().save("idle", _run())
    assert [path for path in victim.rglob("*") if path.lstat().st_uid != 0] == []
    assert sorted(str(path.relative_to(victim)) for path in victim.rglob("*")) == [
        "powerprof",
        "powerprof/runs",
        "secret",
    ]


class _Run(msgspec.Struct):
    id: str | None = None


def _run() -> _Run:
    return _Run()


def test_a_run_of_the_caller_belongs_to_the_caller(under_sudo: Attacker) -> None:
    RunStore().save("idle", _run(), {"capture.bin": b"x"})
    made = [under_sudo.home / "state", *(under_sudo.home / "state").rglob("*")]
    assert [path.name for path in made] == ["state", "powerprof", "runs", "idle-0001", "capture.bin", "run.json"]
    assert {path.stat().st_uid for path in made} == {UID}
    assert {stat.S_IMODE(path.stat().st_mode) for path in made} == {0o700, 0o600}


def test_no_module_gives_files_away_by_name() -> None:
    """Names that another account can exchange are not for chown: what is made is made as whom it belongs to."""
    package = REPOSITORY / "powerprof"
    found = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if any(word in path.read_text() for word in ("os.chown(", "shutil.chown(", "os.lchown("))
    }
    # `folders.set_owner` takes a descriptor.
    assert found == {"system/folders.py"}


def test_who_could_change_a_path(attacker: Attacker, tmp_path: Path) -> None:
    assert only_root_writes(Path("/usr/bin/env")) is None
    assert only_root_writes(tmp_path) is None  # /tmp is sticky, and what is below is root's
    assert only_root_writes(attacker.home / "absent") == f"{attacker.home} belongs to user {UID}"
    loose = tmp_path / "loose"
    loose.mkdir()
    loose.chmod(0o777)
    assert only_root_writes(loose) == f"others than root may write to {loose}"
    (tmp_path / "link").symlink_to(attacker.home)
    assert only_root_writes(tmp_path / "link") == f"{attacker.home} belongs to user {UID}"


def test_a_walk_leaves_no_descriptor_open(attacker: Attacker) -> None:
    attacker.does(lambda: (attacker.home / "loop").symlink_to("loop"))
    before = len(os.listdir("/proc/self/fd"))
    for path in ("/bin/sh", "/nonexistent/x", str(attacker.home / "loop"), "/etc/../bin/.", ""):
        for _ in range(20):
            with contextlib.suppress(OSError):
                Folder.open(path).__exit__(None, None, None)
    assert len(os.listdir("/proc/self/fd")) == before


def test_temporary_folders_are_not_made_where_others_could_exchange_them(
    attacker: Attacker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(attacker.folder("tmp")))
    assert paths.temporary_base() == Path("/tmp")
    monkeypatch.setattr("tempfile.tempdir", str(attacker.secret.parent))
    assert paths.temporary_base() == attacker.secret.parent


def _stale(path: Path) -> Path:
    """A socket that nobody listens on any more."""
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))
    return path


def _answer(accept: str) -> tuple[bytes, str]:
    return b"", "text/plain"


@pytest.mark.parametrize("by_a_link", [False, True])
def test_under_sudo_no_socket_of_roots_is_removed_or_made(under_sudo: Attacker, by_a_link: bool) -> None:
    folder = under_sudo.secret.parent
    place = _stale(folder / "root.sock")
    if by_a_link:
        under_sudo.does(lambda: (under_sudo.home / "run").symlink_to(folder))
        place = under_sudo.home / "run/root.sock"
    inode = (folder / "root.sock").stat().st_ino
    for listen in (place, place.with_name("new.sock")):
        with pytest.raises(PowerprofError, match=r"cannot listen on .*(permission denied|symbolic link)"):
            MetricsServer(listen, _answer).close()
    assert sorted(os.listdir(folder)) == ["root.sock", "secret"]
    assert (folder / "root.sock").stat().st_ino == inode


def test_under_sudo_a_socket_is_the_callers_and_is_gone_afterwards(under_sudo: Attacker) -> None:
    place = under_sudo.home / "metrics.sock"
    _stale(place)
    under_sudo.owns(place)
    with MetricsServer(place, _answer):
        info = place.stat()
        assert (info.st_uid, stat.S_IMODE(info.st_mode)) == (UID, 0o660)
    assert not place.exists()


def test_a_socket_that_took_the_place_of_ours_is_left_alone(under_sudo: Attacker) -> None:
    place = under_sudo.home / "metrics.sock"
    with MetricsServer(place, _answer):
        under_sudo.does(place.unlink)
        under_sudo.does(lambda: place.touch())
    assert place.is_file()
