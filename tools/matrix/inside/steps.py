# SPDX-License-Identifier: Apache-2.0
"""Steps with time limits; each leaves one line of JSON as soon as it is over."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

# The last line of a job's results.
SAID_ALL = '{"said_all": true}\n'


def _die_with_parent() -> None:
    # On the host's kernel nothing else would end what a killed bench leaves (prctl(2), PR_SET_PDEATHSIG).
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)


class StepError(Exception):
    """A step found something wrong: the text says what, the facts are what it knew by then."""

    def __init__(self, why: str, facts: dict[str, Any] | None = None) -> None:
        super().__init__(why)
        self.facts = facts or {}


@dataclass(frozen=True)
class Finished:
    """How a command ended."""

    code: int
    out: str
    err: str

    def document(self) -> dict[str, Any]:
        """Its stdout as JSON. Raises StepError where the command failed or printed something else."""
        if self.code != 0:
            raise StepError(f"ended with {self.code}: {self.last_words()}")
        try:
            found: dict[str, Any] = json.loads(self.out)
        except ValueError:
            raise StepError(f"printed no JSON: {self.out[:200]!r}") from None
        return found

    def last_words(self) -> str:
        """The end of stderr, else of stdout, in one line."""
        text = self.err.strip() or self.out.strip()
        return " / ".join(line.strip() for line in text.splitlines()[-6:])[-700:]


@dataclass
class Steps:
    """Runs steps one after the other. `limit_s` is one step's; a slow machine gets more by `scale`."""

    results: IO[str]
    scale: float
    prefix: Sequence[str] = ()

    def command(self, argv: Sequence[str], limit_s: float) -> Finished:
        """Run a command to its end. Raises StepError where it takes too long; then nothing of it is left."""
        process = subprocess.Popen(
            [*self.prefix, *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
        try:
            out, err = process.communicate(timeout=limit_s * self.scale)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.communicate(timeout=10 * self.scale)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
            raise StepError(f"took more than {limit_s * self.scale:g} s") from None
        return Finished(process.returncode, out, err)

    def powerprof(self, *words: str, limit_s: float) -> Finished:
        """One command line of powerprof."""
        return self.command([sys.executable, "-m", "powerprof", *words], limit_s)

    @contextlib.contextmanager
    def program(self, *argv: str) -> Iterator[subprocess.Popen[str]]:
        """A program beside the step, killed at its end."""
        process = subprocess.Popen(
            [*self.prefix, *argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
        try:
            yield process
        finally:
            # `unshare --fork` in the prefix makes it two processes: the session ends as one.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def step(self, name: str, action: Callable[[], dict[str, Any]]) -> None:
        """Do one step and say how it went: its facts, or what was wrong."""
        start = time.monotonic()
        said: dict[str, Any] = {"step": name, "ok": True}
        try:
            said["facts"] = action()
        except StepError as error:
            said.update(ok=False, why=str(error), facts=error.facts)
        except Exception as error:  # the bench must hear of everything that goes wrong in here
            said.update(ok=False, why=f"{type(error).__name__}: {error}")
        said["seconds"] = round(time.monotonic() - start, 1)
        self._say(said)

    def keep(self, run: dict[str, Any]) -> None:
        """A record of powerprof's that the bench keeps as a saved run."""
        self._say({"run": run})

    def _say(self, said: dict[str, Any]) -> None:
        self.results.write(json.dumps(said) + "\n")
        self.results.flush()
