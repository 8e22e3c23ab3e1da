# SPDX-License-Identifier: Apache-2.0
"""The one way out to other programs: argument lists, a small environment, a fixed working directory, and children that
die with us. Root starts only what root alone could have written."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from powerprof.system.caller import account_of, caller, is_delegated
from powerprof.system.child import Child, Confinement, die_with_parent
from powerprof.system.errors import CapabilityError, PowerprofError
from powerprof.system.folders import only_root_writes

if TYPE_CHECKING:
    import psutil

# Descendants that a started command leaves running, in any session or process group.
#
# While this process is a subreaper (prctl(2)), orphans of its descendants become its children, so that all of them are
# found from here.

_PR_SET_CHILD_SUBREAPER = 36
_POLL_INTERVAL_S = 0.02
_KILL_PATIENCE_S = 5.0


def adopt_orphans(is_adopting: bool) -> None:
    """Make future orphans of our descendants our children, or those of init again."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(is_adopting), 0, 0, 0)


def end_descendants(list_kept: Callable[[], Collection[int]], patience_s: float) -> bool:
    """End every descendant except the children in `list_kept()` and their descendants. Return whether one was running.

    Each gets SIGTERM, and SIGKILL if it still runs after `patience_s` seconds. Ended children are waited for.
    """
    has_descendants = False
    terminated: set[psutil.Process] = set()
    kill_s = time.monotonic() + patience_s
    while processes := _list_descendants(list_kept()):
        has_descendants = True
        now_s = time.monotonic()
        if now_s > kill_s + _KILL_PATIENCE_S:  # A process sleeps in the kernel, or we may not signal its account.
            break
        for process in processes:
            if now_s >= kill_s:
                _send_signal(process, signal.SIGKILL)
            elif process not in terminated:
                terminated.add(process)
                _send_signal(process, signal.SIGTERM)
        time.sleep(_POLL_INTERVAL_S)
    return has_descendants


def _list_descendants(kept: Collection[int]) -> list[psutil.Process]:
    """Return the running descendants, without the children in `kept` and their descendants."""
    import psutil

    processes: list[psutil.Process] = []
    for child in psutil.Process().children():
        if child.pid not in kept and not _reap(child.pid):
            with suppress(psutil.NoSuchProcess):
                processes += [child, *child.children(recursive=True)]
    return [process for process in processes if not _has_ended(process)]


def _reap(pid: int) -> bool:
    """Wait for a child that has ended. Return whether it had ended."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def _has_ended(process: psutil.Process) -> bool:
    import psutil

    try:
        return process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return True


def _send_signal(process: psutil.Process, number: int) -> None:
    """Signal a process through a pidfd. psutil's own method could signal a process that reuses the number."""
    with suppress(OSError):
        handle = os.pidfd_open(process.pid)
        try:
            # The descriptor keeps the process. The creation time shows whether it is still the intended one.
            if process.is_running():
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


_SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin")
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PASSED = ("TZ", "TERM")
_NOWHERE = "/"
_STARTED: list[subprocess.Popen[bytes]] = []


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
    """The program on PATH or in the sbin folders that an ordinary user's PATH lacks; None where it is absent.

    Root takes only what nobody else could have put there.
    """
    return _find(name)[0]


def need(name: str, package: str) -> Path:
    """As `which`. Raises CapabilityError with the apt command where the program is absent."""
    program, refused = _find(name)
    if program is None:
        raise CapabilityError(refused or f"{name} is not installed", f"apt install {package}")
    return program


def _find(name: str) -> tuple[Path | None, str | None]:
    """The program, or why those that were found are not taken."""
    refused = None
    for folder in _folders():
        path = folder / name
        # In this order: to ask about what lies in a closed folder is an error.
        if os.access(path, os.X_OK) and path.is_file():
            reason = only_root_writes(path) if os.geteuid() == 0 else None
            if reason is None:
                return path, None
            refused = refused or f"{path} is not run as root ({reason})"
    return None, refused


def _folders() -> list[Path]:
    # A relative entry, the empty one too, means the working directory, which may be anybody's.
    entries = [*os.environ.get("PATH", os.defpath).split(os.pathsep), *_SBIN]
    return [Path(entry) for entry in dict.fromkeys(entries) if entry.startswith("/")]


def python(*words: str | Path, site: bool = True) -> list[str | Path]:
    """The words that start our own interpreter on a script or module, where it imports nothing from the working folder,
    the environment or the user's packages; without `site` only the standard library, in half the time.

    What needs the standard library only gets the interpreter that a virtual environment links to: another account,
    which a child may become, need not be able to enter the folder of the environment (root's home, say).
    """
    return [sys.executable, "-I", *words] if site else [Path(sys.executable).resolve(), "-I", "-S", *words]


def environment(user: tuple[int, int] | None = None, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a child finds in its environment: little, and nothing of ours but the time zone and the terminal's kind.

    A password in MYSQL_PWD, LD_PRELOAD or PYTHONPATH of the caller are not a child's business; reports are read in
    the language that they were written in.
    """
    uid = user[0] if user else os.geteuid()
    known = account_of(uid)
    is_self = uid == os.geteuid() and uid != 0
    passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
    return {
        "PATH": os.pathsep.join(map(str, _folders())) if is_self else _SYSTEM_PATH,
        "HOME": os.environ.get("HOME", "/") if is_self else str(known.home if known else "/"),
        "LC_ALL": "C.UTF-8",
        **passed,
        **(extra or {}),
    }


def _checked(
    argv: Sequence[str | Path], user: tuple[int, int] | None, confinement: Confinement | None = None
) -> tuple[str, ...]:
    """The words with the program by its whole path. Raises PowerprofError for one that root must not run."""
    words = tuple(str(word) for word in argv)
    if confinement is not None and confinement.root is not None:
        return words
    if "/" not in words[0]:
        path, refused = _find(words[0])
        if path is None:
            hint = "install it where only root may write" if refused else "is it installed, and on PATH?"
            raise PowerprofError(refused or f"cannot run {words[0]} (no such program)", hint)
        words = (str(path), *words[1:])
    # Our own interpreter runs already, and what becomes somebody else has that account's rights only.
    if os.geteuid() == 0 and user is None and words[0] != sys.executable:
        program = Path(words[0])
        reason = only_root_writes(program) if program.exists() else None
        if reason is not None:
            raise PowerprofError(f"{program} is not run as root ({reason})", "install it where only root may write")
    return words


def _cannot_run(program: str, error: OSError) -> PowerprofError:
    reason = "no such program" if isinstance(error, FileNotFoundError) else (error.strerror or str(error)).lower()
    return PowerprofError(f"cannot run {program} ({reason})", "run it directly: is it a program of this machine?")


def _not_found(word: str) -> PowerprofError:
    """Why a shell would not run that word."""
    if "/" not in word or not os.path.lexists(word):
        return PowerprofError(f"cannot run {word!r} (no such program)", "is it installed, and on PATH?")
    if os.path.isdir(word):  # noqa: PTH112 - Path's raises where a name is too long
        return PowerprofError(f"cannot run {word} (it is a directory)", "name a program")
    return PowerprofError(f"cannot run {word} (not executable)", "chmod +x makes a script of yours a program")


@contextmanager
def _starting(program: str, confinement: Confinement | None) -> Iterator[None]:
    """Why it could not be started, as PowerprofError."""
    try:
        yield
    except OSError as error:
        raise _cannot_run(program, error) from error
    except subprocess.SubprocessError as error:
        # subprocess reports only that something failed before exec.
        if confinement is None or isinstance(error, subprocess.TimeoutExpired):
            raise
        if confinement.root is None:
            raise PowerprofError(
                f"cannot run {program} (the kernel refused its sandbox)",
                "as root, or on a host that lets accounts have user namespaces",
            ) from error
        raise PowerprofError(
            f"cannot run {program} in a private file system (this host does not allow it)",
            "as root, or where accounts may have user namespaces: sysctl kernel.unprivileged_userns_clone=1",
        ) from error


def run(
    argv: Sequence[str | Path],
    *,
    timeout_s: float = 60.0,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    check: bool = True,
    own_mounts: bool = False,
    user: tuple[int, int] | None = None,
    confinement: Confinement | None = None,
) -> Finished:
    """Run a program to its end; with `own_mounts` (PowerTOP mounts debugfs) no mount of its stays behind.

    It finds `environment(user, env)` and, where no `cwd` is given, the root directory. `user` (uid, gid) is whom a
    child of root becomes. `confinement` limits its files and its network: only `database.isolation.sandbox` sets it.

    Raises PowerprofError on time-out, on a missing program, and (check) on failure.
    """
    words = _checked(argv, user, confinement)
    child = Child(user, confinement, own_mounts=own_mounts)
    try:
        with _starting(words[0], confinement):
            done = subprocess.run(
                words,
                input=stdin or "",
                capture_output=True,
                timeout=timeout_s,
                check=False,
                cwd=cwd or _NOWHERE,
                env=environment(user, env),
                encoding="utf-8",
                errors="replace",
                preexec_fn=child.prepare,
                **child.account(),
            )
    except subprocess.TimeoutExpired as error:
        raise PowerprofError(
            f"{words[0]} did not finish in {timeout_s:g} s", "the host may be too busy: try again when it is idle"
        ) from error
    finished = Finished(words, done.returncode, done.stdout, done.stderr)
    if check and done.returncode != 0:
        raise PowerprofError(
            f"{Path(words[0]).name} failed with {done.returncode}: {finished.tail()}",
            "run it directly to see what is missing",
        )
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
    confinement: Confinement | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program that is killed by the kernel when powerprof dies, whatever kills powerprof.

    It runs in a session of its own, so that a Ctrl-C in the terminal reaches only powerprof, which then stops it in
    order. Its environment and working directory are as for `run`. `affinity` pins it to those CPUs. `user` (uid, gid)
    is whom a child of root becomes. `own_mounts`: what it mounts is gone with it. `confinement` is as for `run`.
    `dies_with_us=False` is for a process whose work begins when powerprof dies. Raises PowerprofError where it cannot
    be started.
    """
    words = _checked(argv, user, confinement)
    child = Child(user, confinement, dies_with_us, affinity, own_mounts)
    with _starting(words[0], confinement):
        process = subprocess.Popen(
            words,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=cwd or _NOWHERE,
            start_new_session=True,
            pass_fds=pass_fds,
            env=environment(user, env),
            preexec_fn=child.prepare,  # noqa: PLW1509
            **child.account(),
        )
    _ours()
    _STARTED.append(process)
    return process


def start_typed(argv: Sequence[str], *, stderr: int | IO[Any]) -> subprocess.Popen[bytes]:
    """Start a command that the caller typed, as a shell of theirs would: found on PATH, in their folder, with their
    environment and groups. Under sudo it is not root but the caller. Nothing can be typed into it and its output goes
    nowhere. It dies with us, in a session of its own. Raises PowerprofError where it cannot be started.
    """
    account = caller() if is_delegated() else None
    program = shutil.which(argv[0])
    if program is None:
        raise _not_found(argv[0])
    words = (program, *argv[1:]) if account else _checked((str(Path(program).absolute()), *argv[1:]), None)
    env = {name: value for name, value in os.environ.items() if account is None or not name.startswith("SUDO_")}
    if account:
        env |= {"HOME": str(account.home), **({"USER": account.name, "LOGNAME": account.name} if account.name else {})}
    # So that what it leaves behind is found, wherever that put itself: see `end_session`.
    adopt_orphans(True)
    try:
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
            env=env,
            preexec_fn=die_with_parent,  # noqa: PLW1509
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=account.groups if account else None,
        )
    except OSError as error:
        adopt_orphans(False)
        raise _cannot_run(argv[0], error) from error


def end_session(process: subprocess.Popen[bytes], *, patience_s: float = 2.0) -> bool:
    """End what `start_typed` started with all that it left running, in sessions of their own too; True where there was
    any.

    Asked by SIGTERM first, killed where it does not end in time.
    """
    try:
        left = end_descendants(_ours, patience_s)
    finally:
        adopt_orphans(False)
    # Waited for already where it ended by a signal of `end_descendants`.
    process.poll()
    return left


def _ours() -> set[int]:
    """Children that `start` started and that have not been waited for."""
    _STARTED[:] = [process for process in _STARTED if process.returncode is None]
    return {process.pid for process in _STARTED}


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
