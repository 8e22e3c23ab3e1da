# SPDX-License-Identifier: Apache-2.0
"""Probes of installed programs: a server, load generators, PowerTOP, turbostat, bpftrace and DTrace."""

from __future__ import annotations

import re
from pathlib import Path

from powerprof.host.capabilities import Capability, is_root, limited, missing, none, ok, other_host
from powerprof.system import paths, program_search, programs
from powerprof.system.errors import CapabilityError, PowerprofError
from powerprof.system.next_steps import command_line
from powerprof.system.virtualisation import read_virtualisation
from powerprof.tracing.dtrace import find_dtrace


def _read_version(program: Path, option: str = "--version") -> str:
    """Return the first version number that the program prints, with its path; else the path."""
    try:
        done = programs.run([program, option], timeout_s=10, check=False)
    except PowerprofError:
        return str(program)
    number = re.search(r"\d+\.[\w.:+~-]*\w", f"{done.stdout} {done.stderr}")
    return f"{number[0]} ({program})" if number else str(program)


def probe_program(name: str, absent: str) -> Capability:
    """Return whether a program is installed. `absent` explains its use."""
    program = program_search.which(name)
    return ok(name, _read_version(program)) if program is not None else missing(name, absent, f"apt install {name}")


def probe_server() -> Capability:
    """Return whether there is a server to start privately: mariadbd, or mysqld of MySQL."""
    program = program_search.which("mariadbd") or program_search.which("mysqld")
    if program is None:
        return missing("mariadbd", "neither mariadbd nor mysqld is installed", "apt install mariadb-server")
    return ok("mariadbd", _read_version(program))


def probe_powertop() -> Capability:
    """Return whether PowerTOP can report residency and wake-ups."""
    program = program_search.which("powertop")
    if program is None:
        return missing("powertop", "optional: not installed", "apt install powertop")
    if not is_root():
        return limited("powertop", "optional: only root may run it", command_line("doctor"))
    return ok("powertop", _read_version(program))


def probe_turbostat() -> Capability:
    """Return whether turbostat prints the residency that the hardware achieved. It is run once."""
    program = program_search.which("turbostat")
    if program is None:
        return missing("turbostat", "optional: not installed", "apt install linux-cpupower")
    if not paths.is_this_host():
        return other_host("turbostat")
    if not any(Path("/dev/cpu").glob("[0-9]*/msr")):
        # turbostat would run modprobe; the survey must not change the host.
        if read_virtualisation():
            return none("turbostat", "installed, but this guest has no /dev/cpu/*/msr")
        return missing("turbostat", "optional: installed, but there is no /dev/cpu/*/msr", "modprobe msr")
    if not is_root():
        return limited("turbostat", "optional: only root may run it", command_line("doctor"))
    try:
        done = programs.run([program, "--quiet", "--num_iterations", "1", "--interval", "0.1"], timeout_s=10)
    except PowerprofError as error:
        return limited("turbostat", f"optional: it does not work here: {error.message}")
    if len(done.stdout.splitlines()) < 2:
        return limited("turbostat", "optional: it runs here but prints no figures")
    return ok("turbostat", _read_version(program))


def probe_dtrace() -> Capability:
    """Return whether DTrace can run the shipped D scripts, as `--backend dtrace` requires it."""
    try:
        dtrace = find_dtrace()
    except CapabilityError as error:
        return none("dtrace", f"optional: {error.message}")
    if not is_root():
        return limited("dtrace", "optional: only root may trace with it", command_line("doctor"))
    return ok("dtrace", f"{'.'.join(map(str, dtrace.version))} ({dtrace.path})")
