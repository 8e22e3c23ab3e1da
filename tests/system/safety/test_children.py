# SPDX-License-Identifier: Apache-2.0
"""What root starts: nothing from the working folder, the caller's environment or a place that others may write to."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from powerprof.stacks import demangle
from powerprof.system import program_search, programs
from powerprof.system.errors import CapabilityError, PowerprofError
from tests.conftest import REPOSITORY
from tests.system.safety.conftest import UID, Attacker
from tests.unit.layers import sources

# More than the back references that are thought harmless: it goes to the child.
_EXPANDING = "_Z1fSt4pairIS_IiiES0_E" + "S0_" * 40


@pytest.mark.parametrize("way", ["folder", "PYTHONPATH"])
def test_no_module_of_the_caller_runs_as_root(attacker: Attacker, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    trap = attacker.folder("trap")
    for name in ("resource", "ctypes"):
        module = trap / f"{name}.py"
        module.write_text(f"open({str(trap / 'ran')!r}, 'w').close()\n")
        attacker.owns(module)
    if way == "folder":
        monkeypatch.chdir(trap)
    else:
        monkeypatch.setenv("PYTHONPATH", str(trap))
    demangle.demangle.cache_clear()
    assert demangle.demangle(_EXPANDING).startswith("f(std::pair<std::pair<int, int>, std::pair<int, int> >")
    assert not (trap / "ran").exists()


def test_the_module_takes_none_of_the_working_folder(attacker: Attacker) -> None:
    """`python -m` puts the working folder first."""
    trap = attacker.folder("trap")
    for name in ("typer", "rich", "resource", "msgspec", "numpy"):
        (trap / f"{name}.py").write_text(f"open({str(trap / 'ran')!r}, 'w').close()\n")
    done = subprocess.run(
        [sys.executable, "-m", "powerprof", "residency", "--duration", "0.1", "--no-save"],
        cwd=trap,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not (trap / "ran").exists()


def test_a_child_sees_neither_the_callers_environment_nor_its_folder(
    attacker: Attacker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(attacker.home)
    for name in ("MYSQL_PWD", "LD_PRELOAD_32", "PYTHONPATH", "BASH_ENV", "XDG_CACHE_HOME", "SUDO_UID"):
        monkeypatch.setenv(name, "of the caller")
    said = programs.run(["env"]).stdout.splitlines()
    assert {line.split("=", 1)[0] for line in said} <= {"PATH", "HOME", "LC_ALL", "TZ", "TERM"}
    assert programs.run(["pwd"]).stdout == "/\n"
    assert programs.run(["env"], env={"MYSQL_PWD": "given"}).stdout.count("MYSQL_PWD=given") == 1


def test_root_takes_no_program_that_others_could_have_put_on_path(
    attacker: Attacker, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = attacker.folder("bin")
    for name in ("mariadbd", "powertop-of-nobody"):
        program = place / name
        program.write_text("#!/bin/sh\nid -u\n")
        program.chmod(0o755)
        attacker.owns(program)
    monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
    assert program_search.which("mariadbd") != place / "mariadbd"
    assert program_search.which("powertop-of-nobody") is None
    with pytest.raises(CapabilityError, match=r"powertop-of-nobody is not run as root \(.* belongs to user 65534\)"):
        program_search.need("powertop-of-nobody", "powertop")
    with pytest.raises(PowerprofError, match="is not run as root"):
        programs.run([place / "mariadbd"])
    # As that account it may.
    assert programs.run([place / "mariadbd"], user=(UID, UID)).stdout == f"{UID}\n"


def test_a_child_that_gave_up_root_does_not_get_it_back() -> None:
    if os.geteuid() != 0:
        pytest.skip("no capability: root (sudo make test)")
    said = programs.run(["grep", "NoNewPrivs", "/proc/self/status"], user=(UID, UID)).stdout
    assert said.split() == ["NoNewPrivs:", "1"]


def test_one_module_starts_every_program() -> None:
    """A child that is started elsewhere would have neither the small environment nor the fixed folder."""
    starters = {
        "subprocess": {"run", "Popen", "call", "check_call", "check_output", "getoutput", "getstatusoutput"},
        "os": {"system", "popen", "fork", "forkpty", "posix_spawn", "posix_spawnp", "startfile"},
        "pty": {"spawn", "fork"},
        "asyncio": {"create_subprocess_exec", "create_subprocess_shell"},
    }
    found = []
    for path in sorted((REPOSITORY / "powerprof").rglob("*.py")):
        where = str(path.relative_to(REPOSITORY / "powerprof"))
        for node in sources.walk(path.read_text()):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            of = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
            name = node.func.attr
            if name in starters.get(of, ()) or (of == "os" and name.startswith(("exec", "spawn"))):
                found.append(f"{where}: {of}.{name}")
    # system/programs.py starts the keeper of DTrace, a separate script. Its children inherit from it.
    kept = {f"tracing/dtrace_keeper.py: {call}" for call in ("subprocess.Popen", "os.fork")}
    # A fork that runs no other program.
    kept.add("system/fork.py: os.fork")
    assert set(found) == {"system/programs.py: subprocess.Popen"} | kept


def test_our_own_interpreter_is_started_in_one_place() -> None:
    package = REPOSITORY / "powerprof"
    named = [str(path.relative_to(package)) for path in package.rglob("*.py") if "sys.executable" in path.read_text()]
    # next_steps.py only prints it, in a command line for the user.
    assert sorted(named) == ["system/next_steps.py", "system/programs.py"]


def test_the_interpreter_is_isolated(tmp_path: Path) -> None:
    script = tmp_path / "flags.py"
    script.write_text("import sys; print(sys.flags.isolated, sys.flags.no_site, sys.flags.safe_path)")
    assert programs.run(programs.python_command(script)).stdout == "1 0 True\n"
    assert programs.run(programs.python_command(script, site=False)).stdout == "1 1 True\n"
