# SPDX-License-Identifier: Apache-2.0
"""Every error that a person sees, and the exit code it ends with."""

from __future__ import annotations


class PowerprofError(Exception):
    """Something failed. The message names the thing and the reason, the hint says what to do.

    Both are one line each. `exit_code` is what the process ends with.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class Retryable(PowerprofError):
    """A client, a server or a connection failed that may well work the next time: what it broke may be repeated.

    Everything else stays wrong however often it is tried: a command, a host, a file, a statement's plan.
    """


class UsageError(PowerprofError):
    """The command line asks for something that makes no sense."""

    exit_code = 2


class CapabilityError(PowerprofError):
    """This host cannot do it: the message names the missing capability, the hint the command that provides it."""

    exit_code = 3


class WorseError(PowerprofError):
    """`compare --fail-if-worse` found B worse than A."""

    exit_code = 4


class Interrupted(BaseException):
    """SIGINT or SIGTERM arrived; what was measured until then is saved.

    No PowerprofError and no Exception, as KeyboardInterrupt is none: it is raised at any instant, also inside a
    `try` whose `except` turns a failure into "not there" or "not yet", and would be lost there.
    """

    exit_code = 130

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class HungUp(Interrupted):
    """SIGHUP arrived: the terminal is gone. All else is as with the other signals."""

    exit_code = 129


class DataError(PowerprofError):
    """A file from outside (recording, run, workload, perf map) is damaged or not what it should be.

    The message reads `FILE:LINE: reason`, or `FILE: reason` where lines mean nothing.
    """

    def __init__(self, path: object, reason: str, line: int | None = None, hint: str | None = None) -> None:
        where = f"{path}:{line}" if line is not None else f"{path}"
        super().__init__(f"{where}: {reason}", hint)
        self.path = str(path)
        self.line = line
        self.reason = reason
