# SPDX-License-Identifier: Apache-2.0
"""The only way to start other programs.

Programs get argument lists, a small environment and a fixed working directory, and die with powerprof. Root starts only
programs that only root can have written.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import msgspec

from powerprof.system import open_files
from powerprof.system.caller import SYSTEM_PATH, account_of, caller, is_delegated
from powerprof.system.child import Child, die_with_parent
from powerprof.system.descendants import Leftovers, adopt_orphans, end_descendants
from powerprof.system.errors import PowerprofError
from powerprof.system.folders import only_root_writes
from powerprof.system.fork import reap
from powerprof.system.own_processes import add_ended_cost, add_helper
from powerprof.system.program_search import explain_not_found, find_program, list_folders
from powerprof.system.sandbox import Confinement

_PASSED_VARIABLES = ("TZ", "TERM")
_ROOT_FOLDER = "/"
_STARTED: list[subprocess.Popen[bytes]] = []


class Finished(msgspec.Struct, frozen=True):
    """The result of a program that has ended."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str

    def tail(self, lines: int = 3) -> str:
        """Return the last lines of stderr (or stdout) in one line, for an error message."""
        text = (self.stderr.strip() or self.stdout.strip()).splitlines()
        return " / ".join(line.strip() for line in text[-lines:])[:400]


def python_command(*words: str | Path, site: bool = True) -> list[str | Path]:
    """Return the words that start our own interpreter on a script or module.

    It imports nothing from the working folder, the environment or the user's packages. Without `site` it has only the
    standard library, starts in half the time, and is the interpreter behind a virtual environment's link: the account
    of a child need not be able to enter the folder of the environment (such as root's home).
    """
    return [sys.executable, "-I", *words] if site else [Path(sys.executable).resolve(), "-I", "-S", *words]


def build_environment(user: tuple[int, int] | None = None, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a child: a few variables, and of ours only the time zone and the terminal type.

    MYSQL_PWD, LD_PRELOAD and PYTHONPATH of the caller must not reach a child. The locale is fixed, so that reports of
    programs are in English.
    """
    uid = user[0] if user else os.geteuid()
    account = account_of(uid)
    is_self = uid == os.geteuid() and uid != 0
    passed = {name: os.environ[name] for name in _PASSED_VARIABLES if name in os.environ}
    return {
        "PATH": os.pathsep.join(map(str, list_folders())) if is_self else SYSTEM_PATH,
        "HOME": os.environ.get("HOME", "/") if is_self else str(account.home if account else "/"),
        "LC_ALL": "C.UTF-8",
        **passed,
        **(extra or {}),
    }


def _check_program(
    argv: Sequence[str | Path], user: tuple[int, int] | None, confinement: Confinement | None = None
) -> tuple[str, ...]:
    """Return the words with the program's absolute path. Raise PowerprofError for one that root must not run."""
    words = tuple(str(word) for word in argv)
    if confinement is not None and confinement.root is not None:
        return words
    if "/" not in words[0]:
        path, refused = find_program(words[0])
        if path is None:
            hint = "install it where only root may write" if refused else "is it installed, and on PATH?"
            raise PowerprofError(refused or f"cannot run {words[0]} (no such program)", hint)
        words = (str(path), *words[1:])
    # Our interpreter runs already, and a child of another account has only that account's rights.
    if os.geteuid() == 0 and user is None and words[0] != sys.executable:
        program = Path(words[0])
        reason = only_root_writes(program) if program.exists() else None
        if reason is not None:
            raise PowerprofError(
                f"{program} is not run as root ({reason})", "install it in a directory that only root can write"
            )
    return words


def _explain_failed_start(program: str, error: OSError) -> PowerprofError:
    reason = "no such program" if isinstance(error, FileNotFoundError) else (error.strerror or str(error)).lower()
    hint = "run it directly: is it a program for this machine?"
    if error.errno == errno.EAGAIN:  # fork(2)
        reason, hint = "too many processes of this account", "raise the limit: ulimit -u, or TasksMax of its service"
    return PowerprofError(f"cannot run {program} ({reason})", hint)


@contextmanager
def _convert_start_errors(program: str, confinement: Confinement | None) -> Iterator[None]:
    """Convert errors of the start to PowerprofError."""
    try:
        yield
    except OSError as error:
        raise _explain_failed_start(program, error) from error
    except subprocess.SubprocessError as error:
        # subprocess reports only that something failed before exec.
        open_files.raise_if_used_up()
        if confinement is None or isinstance(error, subprocess.TimeoutExpired):
            raise
        if confinement.root is None:
            raise PowerprofError(
                f"cannot run {program} (the kernel refused its sandbox)",
                "run as root, or on a host that allows user namespaces",
            ) from error
        raise PowerprofError(
            f"cannot run {program} in a private file system (this host does not allow it)",
            "run as root, or allow user namespaces: sysctl kernel.unprivileged_userns_clone=1",
        ) from error


@contextmanager
def _count_helper_cost(confinement: Confinement | None) -> Iterator[None]:
    """Count the program that runs and ends inside as powerprof's own, unless it is confined like a server."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        yield
    finally:
        if confinement is None:
            add_ended_cost(before, resource.getrusage(resource.RUSAGE_CHILDREN))


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
    mark: int | None = None,
) -> Finished:
    """Run a program until it ends.

    It gets `build_environment(user, env)` and, without `cwd`, the root directory. `user` (uid, gid) is the account of a
    child of root. With `own_mounts`, its mounts end with it (PowerTOP mounts debugfs). `confinement` limits its files
    and its network, and `mark` makes it one of a run tree; only `database/sandbox.py` sets them.

    Raise PowerprofError on time-out, for a missing program and, with `check`, on failure.
    """
    words = _check_program(argv, user, confinement)
    child = Child(user, confinement, own_mounts=own_mounts, mark=mark)
    try:
        with _convert_start_errors(words[0], confinement), _count_helper_cost(confinement):
            process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=cwd or _ROOT_FOLDER,
                env=build_environment(user, env),
                encoding="utf-8",
                errors="replace",
                preexec_fn=child.prepare,  # noqa: PLW1509
                **child.account(),
            )
            with process:
                if confinement is None:
                    add_helper(process.pid)
                try:
                    out, err = process.communicate(stdin or "", timeout_s)
                except BaseException:
                    process.kill()
                    raise
    except subprocess.TimeoutExpired as error:
        raise PowerprofError(
            f"{words[0]} did not finish in {timeout_s:g} s", "the host may be too busy: try again when it is idle"
        ) from error
    finished = Finished(words, process.returncode, out, err)
    if check and process.returncode != 0:
        raise PowerprofError(
            f"{Path(words[0]).name} failed with {process.returncode}: {finished.tail()}",
            "run it directly to see the cause",
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
    measured: bool = False,
    confinement: Confinement | None = None,
    mark: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program that the kernel kills when powerprof dies for any reason.

    It runs in a separate session, so that Ctrl-C in the terminal reaches only powerprof, which then stops it in order.
    Environment, working directory, `user`, `own_mounts`, `confinement` and `mark` are as for `run`. `affinity` pins it
    to those CPUs. `dies_with_us=False` is for a process that works after powerprof has died. A `measured` program does
    not count as powerprof. Servers and loads do not either: they are confined or pinned. Raise PowerprofError if it
    cannot be started.
    """
    words = _check_program(argv, user, confinement)
    child = Child(user, confinement, dies_with_us, affinity, own_mounts, mark)
    with _convert_start_errors(words[0], confinement):
        process = subprocess.Popen(
            words,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=cwd or _ROOT_FOLDER,
            start_new_session=True,
            pass_fds=pass_fds,
            env=build_environment(user, env),
            preexec_fn=child.prepare,  # noqa: PLW1509
            **child.account(),
        )
    _list_running()
    _STARTED.append(process)
    if not measured and confinement is None and affinity is None:
        add_helper(process.pid)
    return process


def start_typed(argv: Sequence[str], *, stderr: int | IO[Any]) -> subprocess.Popen[bytes]:
    """Start a command that the caller typed, as the caller's shell would.

    It is found on PATH and runs in the present folder with the caller's environment and groups; under sudo it runs as
    the caller and not as root. It has no input, and its output is discarded. It runs in a separate session and dies
    with us. Raise PowerprofError if it cannot be started.
    """
    account = caller() if is_delegated() else None
    program = shutil.which(argv[0])
    if program is None:
        raise explain_not_found(argv[0])
    words = (program, *argv[1:]) if account else _check_program((str(Path(program).absolute()), *argv[1:]), None)
    env = {name: value for name, value in os.environ.items() if account is None or not name.startswith("SUDO_")}
    if account:
        env |= {"HOME": str(account.home), **({"USER": account.name, "LOGNAME": account.name} if account.name else {})}
    # The orphans of the command become our children, and `end_session` finds them.
    adopt_orphans(True)
    try:
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
            env=env,
            preexec_fn=_prepare_typed,  # noqa: PLW1509
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=account.groups if account else None,
        )
    except OSError as error:
        adopt_orphans(False)
        raise _explain_failed_start(argv[0], error) from error


def _prepare_typed() -> None:
    open_files.restore()
    die_with_parent()


def wait_for_cost(process: subprocess.Popen[bytes], timeout_s: float | None = None) -> float | None:
    """Return the CPU seconds of a program that ends within `timeout_s`, with those of the children that it waited for.

    None if it still runs. Sets `process.returncode` as by `Popen.wait`. RUSAGE_CHILDREN would also count every
    other program that powerprof waited for, such as a meter's.
    """
    ended = reap(process.pid, timeout_s)
    if ended is None:
        return None
    status, cpu_s = ended
    process.returncode = os.waitstatus_to_exitcode(status)
    return cpu_s


def end_session(
    process: subprocess.Popen[bytes], others: Collection[int] = (), *, patience_s: float = 2.0
) -> Leftovers:
    """End a process of `start_typed` and all its running descendants. Return the cost of the descendants.

    Descendants in other sessions are included. Each gets SIGTERM, and SIGKILL after `patience_s` seconds.

    Args:
        process: The process.
        others: The children from before it was started. They are not its own.
        patience_s: The time to end by SIGTERM.
    """
    try:
        leftovers = end_descendants(lambda: {*_list_running(), *others}, patience_s)
    finally:
        adopt_orphans(False)
    # It is already reaped if a signal of `end_descendants` ended it.
    process.poll()
    return leftovers


def _list_running() -> set[int]:
    """Return the children of `start` that have not been waited for."""
    _STARTED[:] = [process for process in _STARTED if process.returncode is None]
    return {process.pid for process in _STARTED}


def stop(process: subprocess.Popen[bytes], *, patience_s: float = 10.0, kind: int = signal.SIGTERM) -> int:
    """Signal a started program, wait, then kill its session. Return its exit status."""
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
