# SPDX-License-Identifier: Apache-2.0
"""Errors that are shown to the user, with their exit codes."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence

_MOST_SERVERS = 8


class PowerprofError(Exception):
    """A failure with a message and a hint of one line each.

    Attributes:
        message: the thing and the reason.
        hint: the remedy.
        exit_code: exit code of the process.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class Retryable(PowerprofError):
    """A failure of a client, a server or a connection that may succeed at the next attempt.

    All other errors persist: a command, a host, a file, the plan of a statement.
    """


class UsageError(PowerprofError):
    """A command line that is wrong or contradicts itself."""

    exit_code = 2


class UnknownNameError(UsageError):
    """A name of the command line that does not exist. The command line proposes the most similar one.

    Attributes:
        word: the name, or the wrong part of it, as typed.
        names: all names that it could be.
    """

    def __init__(self, message: str, word: str, names: Iterable[str], hint: str | None = None) -> None:
        self.word, self.names = word, tuple(names)
        super().__init__(message, hint or f"one of {', '.join(self.names)}")


class SeveralNamesError(UsageError):
    """A name of the command line means several things. The command line shows the first one of `choices`."""

    def __init__(self, message: str, word: str, choices: Sequence[str]) -> None:
        super().__init__(message, f"one of {', '.join(choices)}")
        self.word, self.choices = word, tuple(choices)


class SeveralCommandsError(UsageError):
    """Two commands of the caller are not separated. The command line shows where -- belongs."""


class MissingArgumentError(UsageError):
    """A required argument is missing. The command line shows how to add `example` to it."""

    def __init__(self, message: str, example: str, hint: str) -> None:
        super().__init__(message, hint)
        self.example = example


class Declined(PowerprofError):
    """The answer n to a question. Nothing was changed or measured, and this is not an error."""

    exit_code = 0


class SeveralServersError(UsageError):
    """More than one server is possible.

    Attributes:
        roots: the process ids of their first processes.
        word: the typed name that they have; empty without a target.
    """

    def __init__(self, message: str, roots: Sequence[int], word: str = "") -> None:
        listed = ", ".join(map(str, roots[:_MOST_SERVERS])) + (", …" if len(roots) > _MOST_SERVERS else "")
        super().__init__(f"{message}: {listed}", "choose one by --pid ID")
        self.roots, self.word = tuple(roots), word


class SeveralThreadsError(UsageError):
    """No thread or more than one thread is chosen. `lines` describe the threads to choose from."""

    def __init__(self, message: str, lines: Sequence[str]) -> None:
        super().__init__(message, "choose one by --thread ID")
        self.lines = tuple(lines)


class CapabilityError(PowerprofError):
    """A missing capability of this host; the hint is the command that provides it."""

    exit_code = 3


class WorseError(PowerprofError):
    """The verdict of `compare --fail-if-worse` that B is worse than A."""

    exit_code = 4


class Interrupted(BaseException):
    """SIGINT or SIGTERM; the results until then are saved.

    Not an Exception, like KeyboardInterrupt: it is raised at any instant, also inside a `try` that takes every
    Exception for a failure. There it would be lost.
    """

    exit_code = 130

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class HungUp(Interrupted):
    """SIGHUP: the terminal is gone."""

    exit_code = 129


class DataError(PowerprofError):
    """A damaged or wrong file from outside: a recording, run, workload or perf map.

    The message reads `FILE:LINE: reason`, or `FILE: reason` if the file has no lines.
    """

    def __init__(self, path: object, reason: str, line: int | None = None, hint: str | None = None) -> None:
        where = f"{path}:{line}" if line is not None else f"{path}"
        super().__init__(f"{where}: {reason}", hint)
        self.path = str(path)
        self.line = line
        self.reason = reason


_REASONS = {errno.ENOENT: "no such file", errno.EACCES: "permission denied", errno.EPERM: "permission denied"}


def reason_of(error: OSError) -> str:
    """Return the reason of an OSError in plain words."""
    return _REASONS.get(error.errno or 0) or (error.strerror or str(error)).lower()
