# SPDX-License-Identifier: Apache-2.0
"""The programs that powerprof runs or can take figures from."""

from __future__ import annotations

import re
from pathlib import Path

from powerprof import paths, programs
from powerprof.errors import PowerprofError
from powerprof.host import kernel
from powerprof.host.capability import Capability, limited, missing, none, ok
from powerprof.host.describe import virtualisation


def _version(program: Path, option: str = "--version") -> str:
    """The first version number that the program says of itself, or its path where it says none."""
    try:
        done = programs.run([program, option], timeout_s=10, check=False)
    except PowerprofError:
        return str(program)
    number = re.search(r"\d+\.[\w.:+~-]*\w", f"{done.stdout} {done.stderr}")
    return f"{number[0]} ({program})" if number else str(program)


def _installed(name: str, absent: str) -> Capability:
    """A program of a package of the same name, and its version."""
    program = programs.which(name)
    return ok(name, _version(program)) if program is not None else missing(name, absent, f"apt install {name}")


def mariadbd() -> Capability:
    """The server that is started privately; MySQL's mysqld serves as well."""
    for name in ("mariadbd", "mysqld"):
        program = programs.which(name)
        if program is not None:
            return ok("mariadbd", _version(program))
    return missing("mariadbd", "neither mariadbd nor mysqld is installed", "apt install mariadb-server")


def sysbench() -> Capability:
    """The load generator of `run` and `compare`."""
    return _installed("sysbench", "not installed; most loads of run, compare and sweep need it")


def powertop() -> Capability:
    """Optional: another view of residency and wake-ups."""
    program = programs.which("powertop")
    if program is None:
        return missing("powertop", "optional: not installed", "apt install powertop")
    if not kernel.is_privileged():
        return limited("powertop", "optional: only root may run it", kernel.run_as_root())
    return ok("powertop", _version(program))


def turbostat() -> Capability:
    """Optional: the residency that the hardware achieved. Present is not enough, it is run once."""
    program = programs.which("turbostat")
    if program is None:
        return missing("turbostat", "optional: not installed", "apt install linux-cpupower")
    if not paths.is_this_host():
        return kernel.not_this_host("turbostat")
    if not any(Path("/dev/cpu").glob("[0-9]*/msr")):
        # turbostat itself would run modprobe; to look must not change the host.
        if virtualisation():
            return none("turbostat", "installed, but this guest has no /dev/cpu/*/msr")
        return missing("turbostat", "optional: installed, but there is no /dev/cpu/*/msr", "modprobe msr")
    if not kernel.is_privileged():
        return limited("turbostat", "optional: only root may run it", kernel.run_as_root())
    try:
        tried = programs.run([program, "--quiet", "--num_iterations", "1", "--interval", "0.1"], timeout_s=10)
    except PowerprofError as error:
        return limited("turbostat", f"optional: it does not work here: {error.message}")
    if len(tried.stdout.splitlines()) < 2:
        return limited("turbostat", "optional: it runs here but prints no figures")
    return ok("turbostat", _version(program))


def bpftrace() -> Capability:
    """Optional: runs the shipped one-file probes."""
    return _installed("bpftrace", "optional: not installed")


def dtrace() -> Capability:
    """Optional: runs the shipped D scripts. SystemTap ships a header generator under the same name."""
    program = programs.which("dtrace")
    if program is None:
        return none("dtrace", "optional: not installed; Debian packages it from release 14 on")
    try:
        with program.open("rb") as file:
            is_script = file.read(2) == b"#!"
    except OSError:
        is_script = False
    if is_script:
        return none("dtrace", f"optional: {program} is SystemTap's header generator, not the tracer")
    if not kernel.is_privileged():
        return limited("dtrace", "optional: only root may trace with it", kernel.run_as_root())
    return ok("dtrace", _version(program, "-Vv"))
