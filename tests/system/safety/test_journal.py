# SPDX-License-Identifier: Apache-2.0
"""What is written down before a setting is changed, and what the next start makes of it."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil
import pytest

from powerprof.database import sql
from powerprof.database.private_server import PrivateServer
from powerprof.reversible.changed import ChangedSettings
from powerprof.reversible.journal import Journal, JournalState, SavedSetting, restore_orphaned_settings, write_state
from powerprof.reversible.timer_slack import TimerSlack, read_start_ticks
from powerprof.reversible.variables import Variable
from powerprof.system import paths
from powerprof.system.errors import PowerprofError

pytestmark = pytest.mark.usefixtures("root")
OURS = "50000000"


@pytest.fixture
def sleeper() -> Iterator[int]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process.pid
        process.kill()


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of root's own instead of the host's."""
    import shutil
    import tempfile

    place = Path(tempfile.mkdtemp(dir="/run"))
    monkeypatch.setattr(paths, "ROOT_CHANGED", place / "changed")
    yield place / "changed"
    shutil.rmtree(place)


def held(tid: int, value: str = OURS) -> SavedSetting:
    started = read_start_ticks(tid)
    assert started is not None
    return SavedSetting(TimerSlack(tid, started, value), "50000", tid, started)


def slack(tid: int, value: str | None = None) -> str:
    place = Path(f"/proc/{tid}/timerslack_ns")
    if value is not None:
        place.write_text(value)
    return place.read_text().strip()


def killed(entries: list[SavedSetting], *, since: list[str | None] | None = None) -> None:
    """A powerprof that writes that down and is killed: its lock goes with it."""
    if (pid := os.fork()) == 0:
        journal = Journal(entries)
        journal._open()
        if since is not None:
            write_state(journal.handle, JournalState(since=since))
        os._exit(9)
    os.waitpid(pid, 0)


def test_what_the_keeper_put_back_is_not_said_to_be_changed(sleeper: int, folder: Path) -> None:
    """The next start may have no right to look: that all is as before stands in the journal."""
    ours, theirs = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            entry = held(sleeper)
            journal = Journal([entry])
            journal._open()
            changed = ChangedSettings([entry.setting], journal)
            changed._open()
            os.write(theirs, str(changed._keeper.pid).encode())
            signal.pause()
        finally:
            os._exit(1)
    os.close(theirs)
    keeper = psutil.Process(int(os.read(ours, 20)))
    assert slack(sleeper) == OURS
    keeper.suspend()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert restore_orphaned_settings() == []  # the keeper has it still
    assert len(os.listdir(folder)) == 1
    keeper.resume()
    until_s = time.monotonic() + 60
    with suppress(psutil.NoSuchProcess):
        while keeper.status() != psutil.STATUS_ZOMBIE and time.monotonic() < until_s:
            time.sleep(0.01)
    assert slack(sleeper) == "50000"
    slack(sleeper, OURS)  # by somebody else
    assert restore_orphaned_settings() == []
    assert slack(sleeper) == OURS
    assert os.listdir(folder) == []
    os.close(ours)


@pytest.fixture
def small(folder: Path) -> Iterator[None]:
    """The folder is a disk of 64 KiB."""
    folder.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "none", folder], check=True)
    yield
    subprocess.run(["umount", folder], check=True)


@pytest.mark.usefixtures("small")
def test_a_disk_that_fills_between_two_turns_keeps_the_note_of_the_second(sleeper: int, folder: Path) -> None:
    """Both processes are killed in the second turn: the state of the first one was "settled"."""
    entry = held(sleeper)
    with Journal([entry]) as journal:
        with ChangedSettings([entry.setting], journal):
            pass
        left = 4096 - os.fstat(journal.handle).st_size
        journal.settled = True
    # After the first turn its last page is full.
    entry = msgspec.structs.replace(entry, options="x" * (left + len("null") - len('""')))
    if (pid := os.fork()) == 0:
        try:
            journal = Journal([entry])
            journal._open()
            with ChangedSettings([entry.setting], journal):
                pass
            with suppress(OSError), (folder / "full").open("wb", buffering=0) as file:
                while True:
                    file.write(b"0" * 4096)
            changed = ChangedSettings([entry.setting], journal)
            changed._open()
            changed._keeper.kill()
            changed._keeper.wait()  # until it holds no lock of the journal
        finally:
            os._exit(9)
    os.waitpid(pid, 0)
    assert slack(sleeper) == OURS
    (said,) = restore_orphaned_settings()
    assert said.startswith(f"the timer slack of thread {sleeper} is 50000 again")
    assert slack(sleeper) == "50000"
    assert os.listdir(folder) == ["full"]


def test_without_a_note_on_the_disk_nothing_is_changed(sleeper: int, folder: Path) -> None:
    """A file system that copies on write may have no room to overwrite either: here no write to a file is allowed."""
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            entry = held(sleeper)
            journal = Journal([entry])
            journal._open()
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
            ChangedSettings([entry.setting], journal)._open()
        except PowerprofError as error:
            os.write(write, f"{slack(sleeper)} {error.message}".encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    os.close(write)
    with os.fdopen(read) as answer:
        assert answer.read() == "50000 cannot write down old values (file too large), so nothing is changed"


def test_a_value_that_reads_otherwise_than_it_was_asked_for_is_known_to_the_next_start(folder: Path) -> None:
    """The keeper notes it as soon as it has changed it: both may be killed at once."""
    with PrivateServer() as server:
        started = read_start_ticks(server.pid)
        assert started is not None
        with server.connect() as connection:
            sql.execute(connection, "CREATE USER free@localhost IDENTIFIED BY ''", "GRANT ALL ON *.* TO free@localhost")
            login = server.login.with_account("free", "")
            setting = Variable(login.to_fields(), "sql_mode", "ANSI", server.pid, started, keeps_copies=True)
            before = setting.read()
            assert before is not None
            if (pid := os.fork()) == 0:
                try:
                    journal = Journal([SavedSetting(setting, before, server.pid, started)])
                    journal._open()
                    changed = ChangedSettings([setting], journal)
                    changed._open()
                    changed._keeper.kill()
                    changed._keeper.wait()  # until it holds no lock of the journal
                finally:
                    os._exit(9)
            os.waitpid(pid, 0)
            assert "REAL_AS_FLOAT" in str(setting.read())
            (said,) = restore_orphaned_settings()
            assert said.startswith(f"sql_mode is {before} again")
            assert setting.read() == before


def test_a_folder_that_others_may_write_to_is_refused(sleeper: int, folder: Path) -> None:
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    with pytest.raises(PowerprofError, match="so nothing is changed"), Journal([held(sleeper)]):
        pass
    assert os.listdir(folder) == []
    (said,) = restore_orphaned_settings()
    assert "is not looked at" in said
