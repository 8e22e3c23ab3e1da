# SPDX-License-Identifier: Apache-2.0
"""Files of eight CPUs that go, come back, refuse and are set by others, while powerprof and its keeper are killed.

A seed draws what happens at each moment: before each read and write of a file, and in each pause. In the end each
present file has its old value, or the one that somebody else set, and the journal names the files that are left.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import random
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerprof.reversible import journal, keeper
from powerprof.reversible.changed import ChangedSettings
from powerprof.reversible.host_settings import HostFile
from powerprof.reversible.journal import Journal, SavedSetting, restore_orphaned_settings
from powerprof.reversible.keeper import KeeperAnswer, KeeperOrder, Restoration
from powerprof.reversible.kinds import AppliedChange
from powerprof.system import paths

OURS, DEFAULT = "performance", "powersave"
CPUS = range(8)


class Event(NamedTuple):
    """What happens at a moment: `kind`, to a CPU, with a value."""

    kind: str
    cpu: int
    value: str


class Killed(BaseException):
    """The end of a process at this moment. No handler runs but those of descriptors."""


class Host:
    """Eight CPUs with a governor each.

    Attributes:
        right: the value that each file must have in the end.
        away: the CPUs that are offline.
        refusing: the CPUs whose file refuses every write.
    """

    def __init__(self, root: Path, before: list[str], events: Iterator[Event | None]) -> None:
        self.root, self.right, self._events = root, list(before), events
        self.away: set[int] = set()
        self.refusing: dict[int, int] = {}
        for cpu, value in enumerate(before):
            self.place(cpu).parent.mkdir(parents=True)
            self.place(cpu).write_text(value)

    def place(self, cpu: int) -> Path:
        return self.root / f"cpu{cpu}/scaling_governor"

    def value(self, cpu: int) -> str:
        return (self._hidden(cpu) if cpu in self.away else self.place(cpu)).read_text()

    def _hidden(self, cpu: int) -> Path:
        return self.root / f"offline{cpu}"

    def pause(self, _: float = 0.0) -> None:
        self.moment(None)

    def moment(self, writes: Path | None) -> None:
        """Let the next event happen, before `writes` is written."""
        event = next(self._events, None)
        if event is None:
            return
        kind, cpu, value = event
        if kind == "kill":
            raise Killed(value)
        # What somebody else sets between our look and our write is lost in any case.
        if kind == "go":
            self.go(cpu)
        elif kind == "refuse":
            self.refuse(cpu)
        elif self.place(cpu) != writes:
            if kind == "back":
                self.back(cpu, value)
            elif kind == "set" and cpu not in self.away and cpu not in self.refusing:
                self.place(cpu).write_text(value)
                self.right[cpu] = value

    def go(self, cpu: int) -> None:
        if cpu not in self.away:
            self.place(cpu).rename(self._hidden(cpu))
            self.away.add(cpu)

    def back(self, cpu: int, value: str = "") -> None:
        """Bring a CPU back with a value, or with the one that it had."""
        if cpu in self.away:
            self._hidden(cpu).rename(self.place(cpu))
            self.away.discard(cpu)
            if value and cpu not in self.refusing:
                self.place(cpu).write_text(value)
                self.right[cpu] = value

    def refuse(self, cpu: int) -> None:
        if cpu in self.away or cpu in self.refusing:
            return
        handle = os.memfd_create(f"cpu{cpu}", os.MFD_ALLOW_SEALING)
        os.write(handle, self.value(cpu).encode())
        fcntl.fcntl(handle, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        self.place(cpu).unlink()
        self.place(cpu).symlink_to(f"/proc/self/fd/{handle}")
        self.refusing[cpu] = handle

    def accept(self, cpu: int) -> None:
        """End the refusal."""
        value = self.value(cpu)
        place = self._hidden(cpu) if cpu in self.away else self.place(cpu)
        place.unlink()
        place.write_text(value)
        os.close(self.refusing.pop(cpu))

    def choose_ours(self, left: set[int]) -> None:
        """Let somebody set powerprof's value on the CPUs that are restored: no later start may undo that."""
        for cpu in set(CPUS) - left - self.away - set(self.refusing):
            self.place(cpu).write_text(OURS)
            self.right[cpu] = OURS

    def boot(self) -> None:
        """All CPUs are online with defaults, some of which are the value that powerprof had set."""
        for cpu in list(self.refusing):
            self.accept(cpu)
        for cpu in CPUS:
            self.back(cpu)
            self.right[cpu] = OURS if cpu % 2 else DEFAULT
            self.place(cpu).write_text(self.right[cpu])
        (self.root / "proc/sys/kernel/random/boot_id").write_text("later")

    def left(self) -> set[int]:
        """The CPUs that the journals name."""
        found: set[int] = set()
        with suppress(FileNotFoundError), paths.open_changed(paths.changed_dir()) as folder:
            for name in folder.names():
                is_running, entries = journal._read_left(folder, name)
                assert not is_running and entries
                found |= {entry.setting.cpu for entry in entries if isinstance(entry.setting, HostFile)}  # type: ignore[misc]
        return found

    def check(self) -> None:
        """Check the promise after a start that nothing disturbed."""
        for cpu in set(CPUS) - self.away - set(self.refusing):
            assert self.value(cpu) == self.right[cpu], f"CPU {cpu}"
        wrong = {cpu for cpu in CPUS if self.value(cpu) != self.right[cpu]}
        left = self.left()
        assert wrong <= left <= self.away | set(self.refusing)
        lines = restore_orphaned_settings()
        assert all("cannot be put back" in line or "cannot be read" in line for line in lines), "silent while away"
        assert bool(lines) == any(self.value(cpu) != self.right[cpu] for cpu in set(self.refusing) - self.away)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cpus")


def _use_powerprof(host: Host, before: list[str]) -> set[int]:
    """Change the governor, wait, and restore it, by the keeper or by powerprof after it was killed.

    Return the CPUs that it may have left.
    """
    files = [HostFile("the governor", str(host.place(cpu)), OURS) for cpu in CPUS]
    answers: list[KeeperAnswer] = []
    saved = [SavedSetting(file, old, os.getpid(), None) for file, old in zip(files, before, strict=True)]

    def wait() -> None:
        for _ in range(8):
            host.pause()

    opened = Journal(saved)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keeper, "_answer", answers.append)
        opened._open()
        try:
            try:
                keeper.keep(KeeperOrder([*files], before), opened.handle, wait)
            except Killed as killed:
                if killed.args == ("both",):
                    raise
                changed = ChangedSettings(files, opened)
                olds = next((answer.before for answer in answers if answer.before), None) or []
                sinces = next((answer.since for answer in answers if answer.since), None) or [None] * len(olds)
                changed._changed = [AppliedChange(*each) for each in zip(files, olds, sinces, strict=False)]
                restoration = Restoration(changed._changed, changed._save_progress)
                restoration.run(10.0)
                changed._add_notes(restoration.reasons, restoration.missing)
                assert bool(changed.notes) == bool(restoration.left)
                left = {*restoration.left}
            else:
                left = {*(answers[-1].left or ()), *answers[-1].missing}
            opened.settled = not left
        except Killed:
            return set(CPUS)
        finally:
            opened.close()
    return left


def _draw_events(chance: random.Random) -> Iterator[Event | None]:
    """Yield the events of the moments: none at first. Two of three are killed, one with its keeper."""
    first, share = chance.randrange(40), chance.choice((0.03, 0.1, 0.3))
    killed_at, victim = chance.randrange(10, 60), chance.choice(("keeper", "both", ""))
    values = [DEFAULT, "ondemand"]
    for number in itertools.count():
        kind = chance.choices(("go", "back", "set", "refuse", "kill"), (8, 8, 4, 2, 1))[0]
        if number == killed_at and victim:
            yield Event("kill", 0, victim)
        elif number < first or chance.random() > share:
            yield None
        else:
            choices = {"kill": ["keeper", "both"], "back": ["", *values]}.get(kind, values)
            yield Event(kind, chance.choice(CPUS), chance.choice(choices))


@settings(max_examples=150, deadline=None)
@given(
    before=st.lists(st.sampled_from(["schedutil", "conservative"]), min_size=8, max_size=8),
    seed=st.integers(0, 1 << 32),
    starts=st.integers(0, 3),
    boots=st.sampled_from([False, False, True]),
)
def test_each_file_ends_with_its_old_value_or_somebody_elses(
    folder: Path, before: list[str], seed: int, starts: int, boots: bool
) -> None:
    root = folder / "host"
    shutil.rmtree(root, ignore_errors=True)
    host = Host(root, before, _draw_events(random.Random(seed)))
    clock_s = [0.0]

    def sleep(pause_s: float) -> None:
        clock_s[0] += 4 * pause_s
        host.pause()

    read, write = HostFile.read, HostFile.write
    in_write: list[bool] = []

    def read_later(self: HostFile) -> str | None:
        if not in_write:
            host.moment(None)
        return read(self)

    def write_later(self: HostFile, value: str) -> str | None:
        host.moment(Path(self.path))
        in_write.append(True)
        try:
            return write(self, value)
        finally:
            in_write.pop()

    with pytest.MonkeyPatch.context() as patch:
        (root / "proc/sys/kernel/random").mkdir(parents=True)
        (root / "proc/sys/kernel/random/boot_id").write_text("first")
        patch.setenv("POWERPROF_PROCFS", str(root / "proc"))
        patch.setenv("XDG_STATE_HOME", str(root / "state"))
        patch.setattr(paths, "ROOT_CHANGED", root / "changed")
        patch.setattr(paths, "ROOT_CHANGED_FOR_GOOD", root / "for-good")
        patch.setattr(keeper.time, "sleep", sleep)
        patch.setattr(keeper.time, "monotonic", lambda: clock_s[0])
        patch.setattr(HostFile, "read", read_later)
        patch.setattr(HostFile, "write", write_later)
        left = _use_powerprof(host, before)
        host.choose_ours(left)
        for _ in range(starts):
            with suppress(Killed):
                host.pause()
                restore_orphaned_settings()
        host._events = iter(())
        if boots:
            host.boot()
        restore_orphaned_settings()
        host.check()
        if boots:
            assert host.left() == set()
        host.choose_ours(host.left())
        for cpu in list(host.refusing):
            host.accept(cpu)
        for cpu in CPUS:
            host.back(cpu)
        restore_orphaned_settings()
        assert [host.value(cpu) for cpu in CPUS] == host.right
        assert host.left() == set()
