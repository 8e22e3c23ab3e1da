# SPDX-License-Identifier: Apache-2.0
"""Settings that are changed within a block and restored after it, even if powerprof is killed in it."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import msgspec

from powerprof.reversible.groups import command_together, group_settings, name_together
from powerprof.reversible.journal import Journal, JournalState, SavedSetting, write_state
from powerprof.reversible.keeper import KeeperAnswer, KeeperOrder, Restoration
from powerprof.reversible.kinds import AppliedChange, Setting
from powerprof.reversible.variables import OtherVariablesMoved
from powerprof.system import descriptors, programs, signals
from powerprof.system.closeable import Closeable
from powerprof.system.errors import PowerprofError
from powerprof.system.folders import write_all

# Time for the keeper to start and change the settings, to restore them, and to exit.
_CHANGE_S, _BACK_S, _END_S = 40.0, 10.0, 2.0
_MAX_BYTES = 1 << 20


class ChangedSettings(Closeable):
    """Settings that have their `value` within the block, and their old value after it.

    A separate process (`keeper`) changes and restores them, and survives this one. If the keeper is killed, this
    process restores them. A setting that another user has changed in between is left alone. If one setting cannot be
    changed, `open` raises PowerprofError and changes none.

    Attributes:
        notes: lines for the settings that could not be restored, with the command to type, and for missing files.
    """

    def __init__(
        self, settings: Sequence[Setting], journal: Journal | None = None, before: Sequence[str] | None = None
    ) -> None:
        """Prepare the change.

        `journal` has the old values; the keeper writes its progress there. `before` are the values that the settings
        must have now; without it any value is accepted.
        """
        self.notes: list[str] = []
        self._settings, self._journal = list(settings), journal
        self._expected = None if before is None else list(before)
        self._changed: list[AppliedChange] = []
        self._keeper: subprocess.Popen[bytes] | None = None
        self._received = b""

    @property
    def since(self) -> list[str | None]:
        """The value of each setting as it reads after the change."""
        return [change.since for change in self._changed]

    def _open(self) -> None:
        handles = [] if self._journal is None else [self._journal.handle]
        self._keeper = programs.start(
            programs.python_command("-m", "powerprof.reversible.keeper", str(os.getpid()), *map(str, handles)),
            pass_fds=handles,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            dies_with_us=False,
        )
        until_s = time.monotonic() + _CHANGE_S
        assert self._keeper.stdin is not None  # noqa: S101  a pipe
        order = msgspec.json.encode(KeeperOrder(self._settings, self._expected)) + b"\n"
        with suppress(BrokenPipeError):  # The keeper has ended, so its answer is missing.
            write_all(self._keeper.stdin.fileno(), order)
        while True:
            answer = self._read_answer(until_s)
            if answer is None:
                groups = group_settings(self._settings, [None] * len(self._settings))
                names = ", ".join(name_together([self._settings[each] for each in group]) for group in groups)
                raise PowerprofError(
                    f"cannot change {names} (the process that puts settings back did not answer)",
                    "the host may be too busy: try again when it is idle",
                )
            if answer.error is not None and answer.mover is not None:
                raise OtherVariablesMoved(answer.error, answer.hint, answer.mover, answer.moved or {})
            if answer.error is not None:
                raise PowerprofError(answer.error, answer.hint)
            if answer.since is not None:
                return

    def close(self) -> None:
        """Restore the settings, and add notes about those that could not be restored."""
        with signals.uninterrupted():  # A killed keeper restores nothing.
            self._close()

    def _close(self) -> None:
        keeper = self._keeper
        if keeper is None:
            return
        answer = KeeperAnswer()
        try:
            assert keeper.stdin is not None  # noqa: S101  a pipe
            keeper.stdin.close()
            until_s = time.monotonic() + _BACK_S
            while not answer.is_last and (following := self._read_answer(until_s)) is not None:
                answer = following
        finally:
            self._keeper = None
            assert keeper.stdout is not None  # noqa: S101  a pipe
            keeper.stdout.close()
        reasons, missing = answer.left, answer.missing
        if not missing or not answer.is_last:  # else the keeper stays, and waits for the files
            try:
                keeper.wait(_END_S)
            except subprocess.TimeoutExpired:
                if reasons is None:  # The keeper keeps trying, and survives this process.
                    reasons = dict.fromkeys(range(len(self._changed)), "")
            else:
                if not answer.is_last:  # It was killed.
                    restoration = Restoration(self._changed, self._save_progress)
                    restoration.run(_BACK_S)
                    reasons, missing = restoration.reasons, restoration.missing
        self._add_notes(reasons or {}, missing)

    def _save_progress(self, progress: Restoration) -> None:
        if self._journal is not None:
            since = self.since if len(self._changed) == len(self._settings) else None
            with suppress(OSError):  # The next start reads the settings instead.
                write_state(self._journal.handle, JournalState(progress.left, since))

    def _add_notes(self, reasons: Mapping[int, str], missing: Sequence[int]) -> None:
        numbers = sorted([*reasons, *missing])
        changes = [self._changed[number] for number in numbers]
        keys = [(self._changed[number].before, number in missing) for number in numbers]
        for group in group_settings([change.setting for change in changes], keys):
            settings, before = [changes[index].setting for index in group], changes[group[0]].before
            name, number = name_together(settings), numbers[group[0]]
            if number in missing:
                self.notes.append(f"{name} is missing, and will be {before} again when it is back")
                continue
            why = f" ({reasons[number]})" if reasons[number] else ""
            command = command_together(settings, before)
            self.notes.append(f"{name} could not be put back to {before!r}{why}: {command}")

    def _read_answer(self, until_s: float) -> KeeperAnswer | None:
        """Return the keeper's next line; None if it has ended, or does not answer in time."""
        assert self._keeper is not None  # noqa: S101  open
        assert self._keeper.stdout is not None  # noqa: S101  a pipe
        pipe = self._keeper.stdout.fileno()
        while b"\n" not in self._received:
            ready = descriptors.readable([pipe], until_s - time.monotonic())
            piece = os.read(pipe, 1 << 16) if ready and len(self._received) < _MAX_BYTES else b""
            if not piece:
                return None
            self._received += piece
        line, _, self._received = self._received.partition(b"\n")
        answer = msgspec.json.decode(line, type=KeeperAnswer)
        if answer.before is not None:
            self._changed = [AppliedChange(*pair) for pair in zip(self._settings, answer.before, strict=True)]
        if answer.since is not None:
            for change, since in zip(self._changed, answer.since, strict=True):
                change.since = since
        return answer


@contextmanager
def change_settings(changed: ChangedSettings) -> Iterator[ChangedSettings]:
    """Change settings within the block. Raise PowerprofError if one is not restored, or add it to the error's hint."""
    try:
        with changed:
            yield changed
    except PowerprofError as error:
        error.hint = "; ".join(filter(None, [error.hint, *changed.notes]))
        raise
    if changed.notes:
        raise PowerprofError("; ".join(changed.notes), "run any powerprof command again, which tries to restore them")


@contextmanager
def change_temporarily(saved: Sequence[SavedSetting]) -> Iterator[ChangedSettings]:
    """Change settings within the block, with their old values in the journal. Raise PowerprofError if one stays."""
    with Journal(saved) as journal:
        changed = ChangedSettings([each.setting for each in saved], journal, [each.before for each in saved])
        try:
            with change_settings(changed):
                yield changed
        finally:
            journal.settled = not changed.notes
