"""DTrace as a backend: is there a real one, which of the shipped scripts fits it, and running it.

Debian's systemtap-sdt-dev installs a `dtrace` that only makes headers for static probes: it is a script, and its
`-V` does not name the D language. Scripts take no macro arguments: what is put into them is checked here first.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from powerprof import programs
from powerprof.errors import CapabilityError, PowerprofError, UsageError
from powerprof.paths import data_dir

Question = Literal["function-profile", "wakeups", "sleep-wake-latency"]

MAX_SECONDS = 86_400
MAX_FRAMES = 100
_VERSION = re.compile(r"dtrace: (\w+) D (\d+)\.(\d+)(?:\.(\d+))?")
# A name or glob of the C language's names, C++'s by their mangled form: nothing that ends a probe description.
_FUNCTIONS = re.compile(r"[A-Za-z0-9_*?.$~]{1,128}")
_MODULE = re.compile(r"[A-Za-z0-9_*?.+-]{0,128}")
_REMEDY = {
    "Linux": "Oracle's dtrace 2.x: dnf install dtrace on Oracle Linux and Fedora; elsewhere build dtrace-utils; "
    "without it: powerprof attribute --functions",
    "FreeBSD": "kldload dtraceall",
}
_SCRIPTS: dict[str, dict[Question, str]] = {
    "Linux": {
        "function-profile": "function-profile-linux.d",
        "wakeups": "wakeups-linux.d",
        "sleep-wake-latency": "sleep-wake-latency-linux.d",
    },
    "SunOS": {
        "function-profile": "function-profile.d",
        "wakeups": "wakeups.d",
        "sleep-wake-latency": "sleep-wake-latency.d",
    },
    "FreeBSD": {
        "function-profile": "function-profile.d",
        "wakeups": "wakeups-freebsd.d",
        "sleep-wake-latency": "sleep-wake-latency-freebsd.d",
    },
    "Darwin": {"function-profile": "function-profile.d", "wakeups": "wakeups-macos.d"},
}


@dataclass(frozen=True)
class Dtrace:
    """A DTrace that was found. `version` is of its D language."""

    path: Path
    system: str
    vendor: str
    version: tuple[int, int]


@dataclass(frozen=True)
class DtraceRun:
    """What a script printed, for `dtrace_output` to parse. `drops` are DTrace's own words about lost data."""

    question: Question
    pid: int
    seconds: int
    stdout: str
    drops: tuple[str, ...]


def find_dtrace(system: str | None = None) -> Dtrace:
    """The host's DTrace. Raises CapabilityError where there is none, or only SystemTap's generator of that name."""
    name = system or os.uname().sysname
    remedy = _REMEDY.get(name, "DTrace is part of illumos, Solaris, FreeBSD and macOS")
    path = programs.which("dtrace")
    if path is None:
        raise CapabilityError("dtrace is not installed", remedy)
    if _is_script(path):
        raise CapabilityError(f"{path} is SystemTap's header generator, not DTrace", remedy)
    done = programs.run([path, "-V"], timeout_s=10, check=False)
    match = _VERSION.search(done.stdout + done.stderr)
    if match is None:
        raise CapabilityError(f"{path} is not DTrace: it does not name its D language", remedy)
    version = int(match[2]), int(match[3])
    if name == "Linux" and version < (2, 0):
        raise CapabilityError(f"dtrace {match[2]}.{match[3]} on Linux is not supported; 2.0 is", remedy)
    return Dtrace(path, name, match[1], version)


def _is_script(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False  # executable, not readable: its version tells


def pick(dtrace: Dtrace, question: Question) -> Path:
    """The script for this system. Raises CapabilityError where there is none."""
    script = _SCRIPTS.get(dtrace.system, {}).get(question)
    if script is None:
        raise CapabilityError(f"no DTrace script for {question} on {dtrace.system}")
    return data_dir("probes") / "dtrace" / script


def render(text: str, *, pid: int, seconds: int, functions: str = "*", module: str = "a.out", frames: int = 40) -> str:
    """A script with its parameters put in. Raises UsageError for any that could be more than a parameter."""
    if not 0 < pid < 1 << 31:
        raise UsageError(f"{pid} is no process id")
    if not 0 < seconds <= MAX_SECONDS:
        raise UsageError(f"a DTrace window of {seconds} s makes no sense", f"whole seconds up to {MAX_SECONDS:,}")
    if not 0 < frames <= MAX_FRAMES:
        raise UsageError(f"{frames} frames make no sense", f"up to {MAX_FRAMES}")
    if not _FUNCTIONS.fullmatch(functions):
        raise UsageError(f"--functions: DTrace takes names with * and ?, not {functions[:60]!r}", "'handle_slave*'")
    if not _MODULE.fullmatch(module):
        raise UsageError(f"not a module's name: {module[:60]!r}", "a.out is the program itself")
    values = {"PID": str(pid), "SECONDS": str(seconds), "FUNCTIONS": functions, "MODULE": module, "FRAMES": str(frames)}
    return re.sub(r"@([A-Z]+)@", lambda match: values.get(match[1], match[0]), text)


def check(dtrace: Dtrace, script: str, pid: int) -> None:
    """Let DTrace compile a rendered script without running it (`-e`). Raises PowerprofError with its complaint."""
    with _script_file(script) as path:
        done = programs.run([dtrace.path, "-e", "-q", *_grab(script, pid), "-s", path], timeout_s=60, check=False)
    if done.returncode != 0:
        raise _explain(done)


def run_dtrace(
    question: Question,
    pid: int,
    seconds: int,
    *,
    functions: str = "*",
    module: str = "a.out",
    frames: int = 40,
    dtrace: Dtrace | None = None,
) -> DtraceRun:
    """Pick, render, check and run a script. Raises CapabilityError, UsageError or PowerprofError."""
    found = dtrace or find_dtrace()
    text = pick(found, question).read_text()
    script = render(text, pid=pid, seconds=seconds, functions=functions, module=module, frames=frames)
    check(found, script, pid)
    with _script_file(script) as path:
        done = programs.run([found.path, "-q", *_grab(script, pid), "-s", path], timeout_s=seconds + 120, check=False)
    if done.returncode != 0:
        raise _explain(done)
    drops = tuple(line.strip()[:200] for line in done.stderr.splitlines() if " drop" in line)
    return DtraceRun(question, pid, seconds, done.stdout, drops)


def _grab(script: str, pid: int) -> list[str]:
    """`-p` lets DTrace resolve the process's symbols; macOS and illumos need it for ustack() too."""
    return ["-p", str(pid)] if f"pid{pid}:" in script or "ustack(" in script else []


@contextmanager
def _script_file(script: str) -> Iterator[Path]:
    with tempfile.NamedTemporaryFile("w", prefix="powerprof-", suffix=".d") as file:
        file.write(script)
        file.flush()
        yield Path(file.name)


def _explain(done: programs.Finished) -> PowerprofError:
    text = (done.stderr or done.stdout).lower()
    if "privilege" in text or "permission denied" in text or "not permitted" in text:
        return CapabilityError(f"dtrace is not permitted: {done.tail(1)}", "run as root")
    return PowerprofError(f"dtrace refused the script: {done.tail(2)}")
