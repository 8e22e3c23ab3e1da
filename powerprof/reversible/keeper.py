# SPDX-License-Identifier: Apache-2.0
"""The process that changes settings, and restores them when powerprof requests it or dies (kill -9).

`changed.ChangedSettings` starts it in a separate session, so that neither Ctrl-C nor a signal to powerprof's group
reaches it. It reads the settings from one line of stdin, with passwords of logins. It answers in lines on stdout: the
old values before any change, the values after all changes or an error, and at the end the settings that it could not
restore. In between it sleeps without a time-out.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress

import msgspec

from powerprof.reversible.events import EventAltered
from powerprof.reversible.journal import JournalState, write_state
from powerprof.reversible.kinds import AppliedChange, OtherVariablesMoved, Setting
from powerprof.system.errors import PowerprofError
from powerprof.system.files import reason_of

# A server that restarts, or has no free connection, may answer later.
_PATIENCE_S, _RETRY_S = 60.0, 0.5


class KeeperOrder(msgspec.Struct, frozen=True):
    """The settings to change. `expected` are the values that they must have now."""

    settings: list[Setting]
    expected: list[str] | None = None


class KeeperAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the keeper, with one of its fields set."""

    before: list[str] | None = None
    since: list[str | None] | None = None
    error: str | None = None
    hint: str | None = None
    mover: str | None = None
    moved: dict[str, str] | None = None
    left: dict[int, str] | None = None


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


def restore_all(changed: list[AppliedChange], patience_s: float) -> dict[int, str]:
    """Restore the settings, the last one first. Return the reasons for those that could not be restored, by number."""
    left, until_s = dict(enumerate(changed)), time.monotonic() + patience_s
    reasons: dict[int, str] = {}
    while True:
        for number in sorted(left, reverse=True):
            try:
                left[number].put_back()
                reasons.pop(number, None)
            except PowerprofError as error:
                reasons[number] = error.message
                if not isinstance(error, EventAltered):
                    continue  # a later try may succeed
            del left[number]
        if not left or time.monotonic() > until_s:
            return reasons
        time.sleep(_RETRY_S)


def main() -> None:
    """Run the keeper. The arguments are powerprof's pid, and the descriptor of the open journal if there is one."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    parent, journal = int(sys.argv[1]), (int(sys.argv[2]) if len(sys.argv) > 2 else None)
    try:
        parent_handle = os.pidfd_open(parent)
    except OSError:
        return
    changed: list[AppliedChange] = []
    try:
        order = _read_order(parent)
        settings = order.settings
        before = [_read_value(setting) for setting in settings]
        if order.expected is not None:
            _check_expected(settings, before, order.expected)
        _answer(KeeperAnswer(before=before))
        _note(journal, JournalState())
        for setting, value in zip(settings, before, strict=True):
            changed.append(AppliedChange(setting, value))
            changed[-1].since = setting.write(setting.value)
        since = [change.since for change in changed]
        with suppress(PowerprofError):  # The next start compares with the values of the order instead.
            _note(journal, JournalState(since=since))
        _answer(KeeperAnswer(since=since))
        _wait_for_end(parent_handle)
    except OtherVariablesMoved as error:
        _answer(KeeperAnswer(error=error.message, hint=error.hint, mover=error.name, moved=error.moved))
    except PowerprofError as error:
        _answer(KeeperAnswer(error=error.message, hint=error.hint))
    left = restore_all(changed, _PATIENCE_S)
    if not left:
        with suppress(PowerprofError):  # The next start reads the settings instead.
            _note(journal, JournalState(settled=True))
    _answer(KeeperAnswer(left=left))


if __name__ == "__main__":
    main()
