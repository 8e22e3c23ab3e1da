# SPDX-License-Identifier: Apache-2.0
"""The process that changes settings, and restores them when powerprof requests it or dies (kill -9).

`changed.ChangedSettings` starts it in a separate session, so that neither Ctrl-C nor a signal to powerprof's group
reaches it. It reads the settings from one line of stdin, with passwords of logins. It answers in lines on stdout: the
old values before any change, the values after all changes or an error, and then the settings that are left, until it
has restored all. In between it sleeps without a time-out. If only files are left that are missing, its last answer
comes at once; it stays for a minute, and restores each file that comes back.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from powerprof.reversible.host_settings import FileAway, HostFile
from powerprof.reversible.journal import JournalState, write_state
from powerprof.reversible.kinds import AppliedChange, Setting
from powerprof.reversible.variables import OtherVariablesMoved
from powerprof.system.errors import PowerprofError, reason_of

# A server that restarts, or has no free connection, may answer later.
_PATIENCE_S, _RETRY_S = 60.0, 0.5


class KeeperOrder(msgspec.Struct, frozen=True):
    """The settings to change. `expected` are the values that they must have now."""

    settings: list[Setting]
    expected: list[str] | None = None


class KeeperAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the keeper: the old values, the values after the change, an error, or what is left.

    Attributes:
        left: the settings that are not restored, with the reasons, by number.
        missing: the files that are not restored because they are missing.
        is_last: no further line comes.
    """

    before: list[str] | None = None
    since: list[str | None] | None = None
    error: str | None = None
    hint: str | None = None
    mover: str | None = None
    moved: dict[str, str] | None = None
    left: dict[int, str] | None = None
    missing: list[int] = []
    is_last: bool = False


def _answer(answer: KeeperAnswer) -> None:
    with suppress(OSError):  # powerprof may have died
        os.write(1, msgspec.json.encode(answer) + b"\n")


def _note(journal: int | None, state: JournalState) -> None:
    """Write the state for the next start, which may have no right to read the settings. Raise PowerprofError."""
    if journal is not None:
        try:
            write_state(journal, state)
        except OSError as error:
            raise PowerprofError(
                f"cannot write down old values ({reason_of(error)}), so nothing is changed", "make room there"
            ) from error


def _read_order(parent: int) -> KeeperOrder:
    """Return the order; an empty one if powerprof died before it was complete."""
    data = b""
    while not data.endswith(b"\n"):
        piece = os.read(0, 1 << 16)
        if not piece:
            return KeeperOrder([])
        data += piece
    return msgspec.json.decode(data, type=KeeperOrder) if os.getppid() == parent else KeeperOrder([])


def _read_value(setting: Setting) -> str:
    value = setting.read()
    if value is None:
        raise PowerprofError(f"cannot change {setting.name} (it is gone)", "name one that is there")
    return value


def _check_expected(settings: list[Setting], before: list[str], expected: list[str]) -> None:
    """Raise PowerprofError if another user has changed a setting."""
    for setting, now, known in zip(settings, before, expected, strict=True):
        if now != known:
            raise PowerprofError(
                f"{setting.name} is {now}, and was {known} before: somebody else has set it, and it is left as it is",
                "agree with them who tries what",
            )


def _wait_for_end(parent_handle: int) -> None:
    """Wait until powerprof closes the pipe or dies. One of its children may keep the pipe open."""
    poll = select.poll()
    for handle in (0, parent_handle):
        poll.register(handle, select.POLLIN)
    poll.poll()


class Restoration:
    """The restoration of changed settings, the last one first. A setting that fails never stops the others.

    Attributes:
        reasons: the failures, by the number of the change.
        missing: the numbers of the changed files that are missing.
    """

    def __init__(self, changed: Sequence[AppliedChange], report: Callable[[Restoration], None] | None = None) -> None:
        """Prepare it. `report` is called after the first pass, and after each one that restored more."""
        self.reasons: dict[int, str] = {}
        self.missing: list[int] = []
        self._left = dict(enumerate(changed))
        self._report = report
        self._reported: list[int] | None = None

    @property
    def left(self) -> list[int]:
        """The numbers of the changes that may not be restored."""
        return sorted(self._left)

    def run(self, patience_s: float, *, waits_for_files: bool = False) -> None:
        """Try for a while until all settings are restored, or only missing files are left."""
        until_s = time.monotonic() + patience_s
        while True:
            self._try_each()
            if self._report is not None and self.left != self._reported:
                self._reported = self.left
                self._report(self)
            is_waiting = self._left and (waits_for_files or len(self.missing) < len(self._left))
            if not is_waiting or time.monotonic() > until_s:
                return
            time.sleep(_RETRY_S)

    def _try_each(self) -> None:
        self.missing = []
        for number in sorted(self._left, reverse=True):
            self.reasons.pop(number, None)
            try:
                self._left[number].put_back()
            except FileAway:
                self.missing.append(number)
                continue
            except PowerprofError as error:
                self.reasons[number] = error.message
                continue  # A later try may succeed.
            del self._left[number]


def main() -> None:
    """Run the keeper. The arguments are powerprof's pid, and the descriptor of the open journal if there is one."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    parent, journal = int(sys.argv[1]), (int(sys.argv[2]) if len(sys.argv) > 2 else None)
    try:
        parent_handle = os.pidfd_open(parent)
    except OSError:
        return
    keep(_read_order(parent), journal, lambda: _wait_for_end(parent_handle))


def keep(order: KeeperOrder, journal: int | None, wait: Callable[[], None]) -> None:
    """Change the settings, wait, and restore them. The journal always has what the next start needs."""
    settings = order.settings
    changed: list[AppliedChange] = []
    since: list[str | None] | None = None
    try:
        before = [_read_value(setting) for setting in settings]
        if order.expected is not None:
            _check_expected(settings, before, order.expected)
        _answer(KeeperAnswer(before=before))
        _note(journal, JournalState())
        for setting, value in zip(settings, before, strict=True):
            if isinstance(setting, HostFile):  # There can be thousands, so that another user may have come in between.
                _check_expected([setting], [_read_value(setting)], [value])
            changed.append(AppliedChange(setting, value))
            changed[-1].since = setting.write(setting.value)
        since = [change.since for change in changed]
        with suppress(PowerprofError):  # The next start compares with the values of the order instead.
            _note(journal, JournalState(since=since))
        _answer(KeeperAnswer(since=since))
        wait()
    except OtherVariablesMoved as error:
        _answer(KeeperAnswer(error=error.message, hint=error.hint, mover=error.name, moved=error.moved))
    except PowerprofError as error:
        _answer(KeeperAnswer(error=error.message, hint=error.hint))

    def report(progress: Restoration) -> None:
        with suppress(PowerprofError):  # The next start reads the settings instead.
            _note(journal, JournalState(progress.left, since))
        _answer(KeeperAnswer(left=progress.reasons, missing=progress.missing))

    restoration = Restoration(changed, report)
    restoration.run(_PATIENCE_S)
    _answer(KeeperAnswer(left=restoration.reasons, missing=restoration.missing, is_last=True))
    restoration.run(_PATIENCE_S, waits_for_files=True)


if __name__ == "__main__":
    main()
