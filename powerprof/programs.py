"""The one way out to other programs: argument lists, a clean environment, and children that die with us."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from powerprof.errors import CapabilityError, PowerprofError

_PR_SET_PDEATHSIG = 1
_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x20000, 0x4000, 0x40000  # include/uapi/linux/{sched,mount}.h
_SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin")


@dataclass(frozen=True)
class Finished:
    """What a program that ended left behind."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str

    def tail(self, lines: int = 3) -> str:
        """The last lines of stderr (or stdout) in one line, for an error message."""
        text = (self.stderr.strip() or self.stdout.strip()).splitlines()
        return " / ".join(line.strip() for line in text[-lines:])[:400]


def which(name: str) -> Path | None:
    """The program on PATH or in the sbin folders that an ordinary user's PATH lacks; None where it is absent."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *_SBIN])
    found = shutil.which(name, path=path)
    return Path(found) if found else None


def need(name: str, package: str) -> Path:
    """As `which`. Raises CapabilityError with the apt command where the program is absent."""
    found = which(name)
    if found is None:
        raise CapabilityError(f"{name} is not installed", f"apt install {package}")
    return found


def _die_with_parent() -> None:
    # PR_SET_PDEATHSIG fires when the *thread* that forked ends, so children are started from the main thread.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _keep_mounts_apart() -> None:
    """What this process mounts from now on is gone with it. Does nothing where we may not (not root)."""
    libc = ctypes.CDLL(None)
    if libc.unshare(_CLONE_NEWNS) == 0:
        libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)


def run(
    argv: Sequence[str | Path],
    *,
    timeout_s: float = 60.0,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    check: bool = True,
    own_mounts: bool = False,
) -> Finished:
    """Run a program to its end; with `own_mounts` (PowerTOP mounts debugfs) no mount of its stays behind.

    Raises PowerprofError on time-out, on a missing program, and (check) on failure.
    """
    words = tuple(str(word) for word in argv)

    def prepare() -> None:
        _die_with_parent()
        if own_mounts:
            _keep_mounts_apart()

    try:
        done = subprocess.run(
            words,
            input=stdin or "",
            capture_output=True,
            timeout=timeout_s,
            check=False,
            cwd=cwd,
            env=None if env is None else {**os.environ, **env},
            encoding="utf-8",
            errors="replace",
            preexec_fn=prepare,
        )
    except FileNotFoundError as error:
        raise PowerprofError(f"cannot run {words[0]} (no such program)") from error
    except OSError as error:
        raise PowerprofError(f"cannot run {words[0]} ({(error.strerror or str(error)).lower()})") from error
    except subprocess.TimeoutExpired as error:
        raise PowerprofError(f"{words[0]} did not finish in {timeout_s:g} s") from error
    finished = Finished(words, done.returncode, done.stdout, done.stderr)
    if check and done.returncode != 0:
        raise PowerprofError(f"{Path(words[0]).name} failed with {done.returncode}: {finished.tail()}")
    return finished


def start(
    argv: Sequence[str | Path],
    *,
    stdout: int | IO[Any] = subprocess.DEVNULL,
    stderr: int | IO[Any] = subprocess.DEVNULL,
    stdin: int | IO[Any] = subprocess.DEVNULL,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    affinity: Sequence[int] | None = None,
    pass_fds: Sequence[int] = (),
    user: tuple[int, int] | None = None,
    dies_with_us: bool = True,
    own_mounts: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a program that is killed by the kernel when powerprof dies, whatever kills powerprof.

    It runs in a session of its own, so that a Ctrl-C in the terminal reaches only powerprof, which then stops it in
    order. `affinity` pins it to those CPUs. `user` (uid, gid) is whom a child of root becomes. `own_mounts`: what it
    mounts is gone with it. `dies_with_us=False` is for a process whose work begins when powerprof dies. Raises
    PowerprofError where it cannot be started.
    """
    words = tuple(str(word) for word in argv)

    def prepare() -> None:
        # Runs after Popen changed the user: a change of credentials clears the parent-death signal (prctl(2)).
        if dies_with_us:
            _die_with_parent()
        if affinity:
            os.sched_setaffinity(0, affinity)
        if own_mounts:
            _keep_mounts_apart()

    try:
        return subprocess.Popen(
            words,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=cwd,
            start_new_session=True,
            pass_fds=pass_fds,
            env=None if env is None else {**os.environ, **env},
            preexec_fn=prepare,  # noqa: PLW1509
            user=user[0] if user else None,
            group=user[1] if user else None,
            extra_groups=[] if user else None,
        )
    except FileNotFoundError as error:
        raise PowerprofError(f"cannot run {words[0]} (no such program)") from error
    except OSError as error:
        raise PowerprofError(f"cannot run {words[0]} ({(error.strerror or str(error)).lower()})") from error


def stop(process: subprocess.Popen[bytes], *, patience_s: float = 10.0, kind: int = signal.SIGTERM) -> int:
    """Ask a started program to end, wait, then kill its session; returns its exit status."""
    if process.poll() is None:
        process.send_signal(kind)
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                process.kill()
            process.wait()
    return process.returncode
