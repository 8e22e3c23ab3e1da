# SPDX-License-Identifier: Apache-2.0
"""The process that changes settings and puts them back: when powerprof asks for it, and when powerprof dies (kill -9).

Started by `changed.ChangedSettings` in a session of its own, so that neither Ctrl-C nor a signal to powerprof's group
reaches it. It gets the settings in one line on stdin, passwords of logins among them, and answers in lines on stdout:
the old values, before anything is changed; then that all is changed, or why not; at the end what it could not put
back. Then it ends. It sleeps without a time-out in between.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress
from typing import Any

import msgspec

from powerprof.reversible.events import EventAltered
from powerprof.reversible.journal import JournalState, write_state
from powerprof.reversible.kinds import AppliedChange, OtherVariablesMoved, Setting
from powerprof.system.errors import PowerprofError
from powerprof.system.files import reason_of

# A server that is restarted or full of connections may answer later.
_PATIENCE_S, _AGAIN_S = 60.0, 0.5


class KeeperOrder(msgspec.Struct, frozen=True):
    """What is to be changed; `expected` is what it must read now."""

    settings: list[Setting]
    expected: list[str] | None = None


class KeeperAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the keeper's: one of these is set."""

    before: list[str] | None = None
    since: list[str | None] | None = None
    error: str | None = None
    hint: str | None = None
    mover: str | None = None
    moved: dict[str, str] | None = None
    left: dict[int, str] | None = None


def _say(answer: KeeperAnswer) -> None:
    with suppress(OSError):  # powerprof is gone
        os.write(1, msgspec.json.encode(answer) + b"\n")


def _note(journal: int | None, state: JournalState) -> None:
    """Write the state for the next start, which may have no right to look. Raise PowerprofError."""
    if journal is not None:
        try:
            write_state(journal, state)
        except OSError as error:
            raise PowerprofError(
                f"cannot write down old values ({reason_of(error)}), so nothing is changed", "make room there"
            ) from error


def _read_order(parent: int) -> KeeperOrder:
    """The settings; none where powerprof died before it had written them all."""
    data = b""
    while not data.endswith(b"\n"):
        piece = os.read(0, 1 << 16)
        if not piece:
            return KeeperOrder([])
        data += piece
    return msgspec.json.decode(data, type=KeeperOrder) if os.getppid() == parent else KeeperOrder([])


def _before(setting: Setting) -> str:
    value = setting.read()
    if value is None:
        raise PowerprofError(f"cannot change {setting.name} (it is gone)", "name one that is there")
    return value


def _check_expected(settings: list[Setting], before: list[str], expected: list[str] | None) -> None:
    for setting, now, known in zip(settings, before, before if expected is None else expected, strict=True):
        if now != known:
            raise PowerprofError(
                f"{setting.name} is {now}, and was {known} before: somebody else has set it, and it is left as it is",
                "agree with them who tries what",
            )


def _wait_for_the_end(parent: Any) -> None:
    """Until powerprof closes the pipe or has died: a child of its may hold the pipe open."""
    poll = select.poll()
    for handle in (0, parent):
        poll.register(handle, select.POLLIN)
    poll.poll()


def restore_all(changed: list[AppliedChange], patience_s: float) -> dict[int, str]:
    """Return the numbers of those that could not be put back in that time, with the reasons."""
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
                    continue  # later it may be possible
            del left[number]
        if not left or time.monotonic() > until_s:
            return reasons
        time.sleep(_AGAIN_S)


def main() -> None:
    """Arguments: powerprof's pid; the number of the open journal, where there is one."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    parent, journal = int(sys.argv[1]), (int(sys.argv[2]) if len(sys.argv) > 2 else None)
    try:
        handle = os.pidfd_open(parent)
    except OSError:
        return
    changed: list[AppliedChange] = []
    try:
        order = _read_order(parent)
        settings = order.settings
        before = [_before(setting) for setting in settings]
        _check_expected(settings, before, order.expected)
        _say(KeeperAnswer(before=before))
        _note(journal, JournalState())
        for setting, value in zip(settings, before, strict=True):
            changed.append(AppliedChange(setting, value))
            changed[-1].since = setting.write(setting.value)
        since = [one.since for one in changed]
        with suppress(PowerprofError):  # The next start compares with the values of the order instead.
            _note(journal, JournalState(since=since))
        _say(KeeperAnswer(since=since))
        _wait_for_the_end(handle)
    except OtherVariablesMoved as error:
        _say(KeeperAnswer(error=error.message, hint=error.hint, mover=error.name, moved=error.moved))
    except PowerprofError as error:
        _say(KeeperAnswer(error=error.message, hint=error.hint))
    left = restore_all(changed, _PATIENCE_S)
    if not left:
        with suppress(PowerprofError):  # The next start reads the settings instead.
            _note(journal, JournalState(settled=True))
    _say(KeeperAnswer(left=left))


if __name__ == "__main__":
    main()
