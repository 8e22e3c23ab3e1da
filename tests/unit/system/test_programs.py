# SPDX-License-Identifier: Apache-2.0
"""Programs that are started, commands for the user, and errors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from powerprof.system import next_steps, program_search, programs
from powerprof.system.caller import SYSTEM_PATH, HostUser
from powerprof.system.descendants import end_descendants
from powerprof.system.errors import CapabilityError, DataError, PowerprofError, SeveralServersError
from powerprof.system.next_steps import command_line, find_commands, this_command_line
from powerprof.system.programs import Finished, build_environment


def test_an_error_has_the_last_lines_of_its_program() -> None:
    done = Finished(("x",), 1, "of stdout\n", "one\n two \nthree\n\nfour\n")
    assert done.tail() == "three /  / four"
    assert done.tail(1) == "four"
    assert Finished(("x",), 1, "a\nb\nc\nd\n", " \n").tail(2) == "c / d"
    assert len(Finished(("x",), 1, "", "x" * 999).tail()) == 400


@pytest.mark.parametrize(
    ("uid", "user", "is_callers"),
    [(1001, None, True), (1001, (1001, 1), True), (0, None, False), (0, (1001, 1), False)],
)
def test_only_an_own_child_without_root_gets_the_callers_path(
    monkeypatch: pytest.MonkeyPatch, uid: int, user: tuple[int, int] | None, is_callers: bool
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setattr(programs, "account_of", lambda number: HostUser(number, 1, Path(f"/home/{number}"), "x"))
    monkeypatch.setattr(
        os,
        "environ",
        {"PATH": "/own:relative::/bin", "HOME": "/callers", "TZ": "UTC", "LD_PRELOAD": "/evil", "MYSQL_PWD": "s3cret"},
    )
    environment = build_environment(user, {"EXTRA": "1"})
    own_path = "/own:/bin:/usr/local/sbin:/usr/sbin:/sbin"
    assert environment == {
        "PATH": own_path if is_callers else SYSTEM_PATH,
        "HOME": "/callers" if is_callers else f"/home/{user[0] if user else uid}",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "EXTRA": "1",
    }


def test_programs_are_found_on_absolute_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, mode in (("first", 0o644), ("second", 0o755)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tool").touch()
        (tmp_path / name / "tool").chmod(mode)
    monkeypatch.chdir(tmp_path / "second")
    monkeypatch.setenv("PATH", f".:{tmp_path}/first:{tmp_path}/second")
    assert program_search.which("tool") == tmp_path / "second/tool"
    monkeypatch.setenv("PATH", ".")
    assert program_search.which("tool") is None
    with pytest.raises(CapabilityError, match="tool is not installed") as error:
        program_search.need("tool", "tools")
    assert error.value.hint == "apt install tools"


def test_root_runs_no_program_of_another_account(root: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tool").touch(0o755)
    os.chown(tmp_path / "tool", 1001, 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program_search.which("tool") is None
    with pytest.raises(PowerprofError, match=r"tool is not run as root \(.*belongs to user 1001"):
        programs.run(["tool"])


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["/bin/sh", "-c", "echo no >&2; exit 3"], "sh failed with 3: no"),
        (["/bin/sleep", "60"], "did not finish in 0.2 s"),
        (["no-such-program"], "cannot run no-such-program"),
        (["/no/such/program"], "cannot run /no/such/program .no such program"),
        (["/etc/passwd"], "cannot run /etc/passwd .permission denied"),
    ],
)
def test_a_program_that_fails_is_an_error_of_one_line(words: list[str], reason: str) -> None:
    with pytest.raises(PowerprofError, match=reason) as error:
        programs.run(words, timeout_s=0.2 if "sleep" in words[0] else 30.0)
    assert "\n" not in error.value.message and error.value.hint


def test_kept_children_are_not_ended_and_stubborn_ones_are_killed() -> None:
    kept, stubborn = (
        subprocess.Popen(
            ["/bin/sh", "-c", f"{trap} echo ready; while :; do sleep 0.1; done"],
            stdout=subprocess.PIPE,
            start_new_session=True,  # as `start_typed` does
        )
        for trap in ("", "trap '' TERM;")
    )
    others = {child.pid for child in _children()} - {stubborn.pid}
    try:
        for process in (kept, stubborn):
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        began_s = time.monotonic()
        ended = end_descendants(lambda: others, 0.3)
        assert ended.were_running and 0 < ended.cpu_s < 2
        assert time.monotonic() - began_s >= 0.3, "it had time to end on its own"
        assert kept.poll() is None and not end_descendants(lambda: others, 0.3).were_running
    finally:
        for process in (kept, stubborn):
            process.kill()
            process.wait()


_BURN = "import time\nwhile time.process_time() < {}: pass"


def test_the_cost_of_a_program_is_its_own_and_that_of_its_children() -> None:
    idle = programs.start([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    burning = programs.start(["/bin/sh", "-c", f"{sys.executable} -S -c '{_BURN.format(0.2)}'; exit 7"])
    # Another program that powerprof waits for.
    programs.run([sys.executable, "-S", "-c", _BURN.format(0.4)])
    cost_s = programs.wait_for_cost(burning)
    assert cost_s is not None and 0.2 <= cost_s < 0.4 and burning.returncode == 7
    assert programs.wait_for_cost(idle, 0.0) is None and idle.returncode is None
    idle.kill()
    cost_s = programs.wait_for_cost(idle, 60.0)
    assert cost_s is not None and 0 < cost_s < 0.2 and idle.returncode == -signal.SIGKILL


def _children() -> list[Any]:
    import psutil

    return psutil.Process().children()


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that sets the running command line, the account, and sudo."""

    def type_words(*words: str, uid: int = 1001, sudo: bool = False) -> None:
        monkeypatch.setattr(next_steps, "_RUNNING", ["powerprof", *words])
        monkeypatch.setattr(os, "geteuid", lambda: uid)
        monkeypatch.setattr(next_steps, "is_delegated", lambda: sudo)
        monkeypatch.setattr(next_steps, "_needs_root", NEEDS_ROOT)

    return type_words


# The tests of reports replace it (conftest.py).
NEEDS_ROOT = next_steps._needs_root


@pytest.mark.parametrize(
    ("running", "command", "target"),
    [
        (["attribute", "--pid", "mysqld"], "offcpu", "--pid mysqld"),
        (["attribute", "-p", "mysqld"], "offcpu", "--pid mysqld"),
        (["attribute", "--pid=my db"], "offcpu", "'--pid=my db'"),
        (["attribute", "--system", "--for", "5"], "offcpu", "--system"),
        (["attribute", "--cgroup", "a b"], "offcpu", "--cgroup 'a b'"),
        (["attribute", "--pid", "7", "--", "--pid", "8"], "offcpu", "--pid 7"),
        (["queries", "--socket", "/s", "--pid", "7"], "cure", "--socket /s --pid 7"),
        (["queries", "--socket", "/s"], "offcpu", ""),
        (["attribute", "--cgroup", "x"], "queries", ""),
        (["attribute", "--pid", "7"], "report", ""),
    ],
)
def test_a_next_command_has_the_target_of_this_one(typed: Any, running: list[str], command: str, target: str) -> None:
    typed(*running, uid=0)
    assert command_line(command, same_target=True) == f"powerprof {command} {target}".rstrip()


@pytest.mark.parametrize(
    ("words", "uid", "sudo", "with_sudo"),
    [
        ("attribute", 1001, False, True),
        ("attribute", 0, False, False),
        ("attribute --help", 1001, False, False),
        ("idle --from run", 1001, False, False),
        ("compare a b", 1001, False, False),
        ("compare a b", 0, True, True),
        ("attribute", 0, True, True),
        ("attribute --help", 0, True, False),
        ("report run", 0, True, False),
        ("runs", 0, True, False),
    ],
)
def test_a_command_has_sudo_if_it_needs_it(typed: Any, words: str, uid: int, sudo: bool, with_sudo: bool) -> None:
    typed(uid=uid, sudo=sudo)
    assert command_line(words) == f"{'sudo ' if with_sudo else ''}powerprof {words}"
    variable = command_line(words, environment="A=b")
    assert variable == f"{'sudo ' if with_sudo else ''}A=b powerprof {words}"


def test_the_running_command_is_shown_with_further_options(typed: Any) -> None:
    typed("idle", "--for", "5 s")
    assert this_command_line("--plain") == "powerprof --plain idle --for '5 s'"
    assert this_command_line(as_root=True) == "sudo powerprof idle --for '5 s'"


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        ("run powerprof idle --for 5, then", ["powerprof idle --for 5"]),
        ("(sudo A=b powerprof attribute --pid 7)", ["sudo A=b powerprof attribute --pid 7"]),
        ("see /opt/bin/powerprof runs. And powerprof report x", ["/opt/bin/powerprof runs", "powerprof report x"]),
        ("powerprof is a toolkit", []),
        ("no command", []),
    ],
)
def test_commands_are_found_in_a_sentence(text: str, commands: list[str]) -> None:
    assert [text[start:end] for start, end in find_commands(text)] == commands


def test_a_damaged_file_has_its_place() -> None:
    assert DataError("f", "damaged", 7).message == "f:7: damaged"
    assert DataError("f", "damaged").message == "f: damaged"
    assert DataError("f", "damaged", 0).message == "f:0: damaged"
    error = SeveralServersError("which", range(1, 10), "mysqld")
    assert error.message == "which: 1, 2, 3, 4, 5, 6, 7, 8, …"
    assert (error.roots, error.word, error.exit_code) == (tuple(range(1, 10)), "mysqld", 2)
