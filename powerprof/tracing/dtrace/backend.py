# SPDX-License-Identifier: Apache-2.0
"""DTrace as a backend: is there a real one, and running a script with it for a window.

Debian's systemtap-sdt-dev installs a `dtrace` that only makes headers for static probes: it is a script, and its
`-V` does not name the D language. Which script is run, and what is put into it, is `dtrace_scripts`.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from powerprof.measure.procfs import children_cpu_s
from powerprof.measure.window import WindowPart, run_window
from powerprof.system import programs
from powerprof.system.closeable import Closeable
from powerprof.system.errors import CapabilityError, PowerprofError, UsageError
from powerprof.system.paths import data_dir, temporary_base
from powerprof.tracing.dtrace import keeper as dtrace_keeper

_BEGUN = dtrace_keeper.BEGUN
_START_LIMIT_S = 120.0
_END_LIMIT_S = 120.0
_POLL_S = 0.02
_MAX_OUTPUT_BYTES = 256 << 20
# "dtrace: Sun D 1.13", "dtrace: Oracle D 2.0", and Debian's "dtrace: D 2.0.7"
_LANGUAGE = re.compile(r"dtrace: (?:\w+ )?D (\d+)\.(\d+)(?:\.(\d+))?")
_RELEASE = re.compile(r"This is DTrace (\d+)\.(\d+)(?:\.(\d+))?")
_LOSS = re.compile(r"dtrace: (?:(\d+) .*drop|error)")
_REMEDY = {
    "Linux": "Oracle's dtrace 2.x: dnf install dtrace on Oracle Linux and Fedora, apt install dtrace on Debian 14; "
    "powerprof attribute, profile and functions need none",
    "FreeBSD": "kldload dtraceall",
}


@dataclass(frozen=True)
class Dtrace:
    """A DTrace that was found. `version` is its release where it tells that, else that of its D language."""

    path: Path
    system: str
    version: tuple[int, int, int]


@dataclass(frozen=True)
class DtraceRun:
    """What a script printed, for `dtrace_output` to parse. `losses` are DTrace's own words about lost data.

    `tool_cpu_s`: CPU time of DTrace from its start to its end, and ours in the window. `notes`: of the window.
    """

    pid: int
    stdout: str
    losses: tuple[str, ...]
    lost_count: int
    tool_cpu_s: float
    notes: tuple[str, ...] = ()
    interrupted: bool = False


def find_dtrace(system: str | None = None) -> Dtrace:
    """The host's DTrace. Raises CapabilityError where there is none, or only SystemTap's generator of that name."""
    name = system or os.uname().sysname
    remedy = _REMEDY.get(name, "DTrace is part of illumos, Solaris, FreeBSD and macOS")
    path = programs.which("dtrace")
    if path is None:
        raise CapabilityError("dtrace is not installed", remedy)
    if _is_script(path):
        raise CapabilityError(f"{path} is SystemTap's header generator, not DTrace", remedy)
    # On Linux -V names the language only (2.0 up to release 2.0.1); -Vv the release as well.
    done = programs.run([path, "-Vv" if name == "Linux" else "-V"], timeout_s=10, check=False)
    output = done.stdout + done.stderr
    language = _LANGUAGE.search(output)
    if language is None:
        raise CapabilityError(f"{path} is not DTrace: it does not name its D language", remedy)
    major, minor, patch = (int(part or 0) for part in (_RELEASE.search(output) or language).groups())
    if name == "Linux" and (major, minor) < (2, 0):
        raise CapabilityError(f"dtrace {major}.{minor} on Linux is not supported; 2.0 is", remedy)
    return Dtrace(path, name, (major, minor, patch))


def _is_script(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False  # executable, not readable: its version tells


def run_dtrace(dtrace: Dtrace, script: str, pid: int, duration_s: float, *, settle: bool = False) -> DtraceRun:
    """Trace a process by a rendered script for a window; an interrupt ends the window early, and the run says so.

    The window begins with the script's BEGIN, and ends by SIGINT: on an idle CPU DTrace's own clock (tick) can come
    seconds late. Both stand in the output. `settle`: give up what root may do once DTrace, another process, has what it
    takes. Raises CapabilityError or PowerprofError.
    """
    words = [str(dtrace.path), "-q", *_grab(script, pid), "-s", dtrace_keeper.STDIN]
    children_s = children_cpu_s()
    # Files without names: kill -9 leaves none.
    with _unnamed(script) as text, _unnamed() as out, _unnamed() as errors:
        ours, theirs = os.pipe()
        try:
            keeper = programs.start(
                programs.python(dtrace_keeper.__file__, str(pid), str(text.fileno()), *words, site=False),
                stdin=ours,
                pass_fds=[text.fileno()],
                stdout=out,
                stderr=errors,
                dies_with_us=False,
            )
        except BaseException:
            os.close(theirs)
            raise
        finally:
            os.close(ours)
        with _Tracing(keeper, theirs) as tracing:
            _wait_for_begin(keeper, out)
            passed = run_window(duration_s, tracing, until=tracing.ended, settle=settle)
        stdout, stderr, code = _text(out), _text(errors), tracing.exit_code()
    if passed.interrupted is not None and (code != 0 or "\nend\t" not in stdout):
        raise passed.interrupted  # the same signal ended DTrace: a service that is stopped, a terminal that is closed
    if code != 0:
        raise _explain(dtrace, stderr, code)
    losses = [(line.strip()[:200], match) for line in stderr.splitlines() if (match := _LOSS.match(line.strip()))]
    return DtraceRun(
        pid=pid,
        stdout=stdout,
        losses=tuple(line for line, _ in losses),
        lost_count=sum(int(match[1] or 1) for _, match in losses),
        tool_cpu_s=passed.tool_cpu_s + children_cpu_s() - children_s,
        notes=tuple(passed.notes),
        interrupted=passed.interrupted is not None,
    )


class _Tracing(Closeable, WindowPart):
    """DTrace while it traces. It is never killed (`keeper`): the target would not survive it."""

    def __init__(self, keeper: subprocess.Popen[bytes], pipe: int) -> None:
        self._keeper, self._pipe = keeper, pipe
        self._code: int | None = None
        self.ended = os.pidfd_open(keeper.pid)

    def end(self) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
            with suppress(subprocess.TimeoutExpired):
                self._code = self._keeper.wait(_END_LIMIT_S)

    def close(self) -> None:
        self.end()
        os.close(self.ended)

    def exit_code(self) -> int:
        """Raises PowerprofError where it does not end: it is left to, since a kill harms the target."""
        if self._code is None:
            raise PowerprofError(
                f"dtrace does not end (it is a child of process {self._keeper.pid})",
                "wait for it; kill -9 to dtrace can end the traced process too",
            )
        return self._code


def _wait_for_begin(keeper: subprocess.Popen[bytes], out: IO[bytes]) -> None:
    """Until the probes stand. Raises PowerprofError where they never do; that it ended is for the caller to see."""
    limit = time.monotonic() + _START_LIMIT_S
    while keeper.poll() is None and os.pread(out.fileno(), len(_BEGUN), 0) != _BEGUN:
        if time.monotonic() > limit:
            raise PowerprofError(f"dtrace did not begin to trace in {_START_LIMIT_S:g} s", "probe fewer functions")
        time.sleep(_POLL_S)


def _text(file: IO[bytes]) -> str:
    return os.pread(file.fileno(), _MAX_OUTPUT_BYTES, 0).decode("utf-8", "replace")


def _grab(script: str, pid: int) -> list[str]:
    """`-p` lets DTrace resolve the process's symbols; macOS and illumos need it for ustack() too."""
    return ["-p", str(pid)] if f"pid{pid}:" in script or "ustack(" in script else []


@contextmanager
def _unnamed(text: str = "") -> Iterator[IO[bytes]]:
    with tempfile.TemporaryFile(dir=temporary_base()) as file:
        file.write(text.encode())
        file.seek(0)
        yield file


def _explain(dtrace: Dtrace, output: str, code: int) -> PowerprofError:
    ended = f"killed by signal {code - 128}" if code > 128 else f"it ended with {code}"
    lines = [line.strip() for line in output.strip().splitlines() if line.strip()] or [ended]
    lower = output.lower()
    if "privilege" in lower or "permission denied" in lower or "not permitted" in lower:
        return CapabilityError(f"dtrace is not permitted: {lines[-1][:200]}", "run as root")
    hint = None
    if "major_names" in lower:
        hint = "this kernel hides a symbol that DTrace's io.d names: docs/reference/dtrace.md has the way round"
    return PowerprofError(f"dtrace {'.'.join(map(str, dtrace.version))} failed: {' / '.join(lines[-2:])[:400]}", hint)


# Which of the shipped D scripts fits a system, and its parameters put in.
#
# Scripts take no macro arguments: whatever is put into them is checked here first.

Question = Literal["function-profile", "wakeups", "sleep-wake-latency"]

MAX_FRAMES = 100
# A name or glob of the C language's names, C++'s by their mangled form: nothing that ends a probe description.
_FUNCTIONS = re.compile(r"[A-Za-z0-9_*?.$~]{1,256}")
_SYMBOL = re.compile(r"[A-Za-z0-9_.$]{1,1024}")
_MODULE = re.compile(r"[A-Za-z0-9_*?.+-]{0,128}")
_SCRIPTS: dict[str, dict[Question, str]] = {
    "Linux": {
        "function-profile": "function-profile-linux.d",
        "wakeups": "wakeups-linux.d",
        "sleep-wake-latency": "sleep-wake-latency-linux.d",
    },
    "SunOS": {
        "function-profile": "untried/function-profile.d",
        "wakeups": "untried/wakeups.d",
        "sleep-wake-latency": "untried/sleep-wake-latency.d",
    },
    "FreeBSD": {
        "function-profile": "untried/function-profile.d",
        "wakeups": "untried/wakeups-freebsd.d",
        "sleep-wake-latency": "untried/sleep-wake-latency-freebsd.d",
    },
    "Darwin": {"function-profile": "untried/function-profile.d", "wakeups": "untried/wakeups-macos.d"},
}


@dataclass(frozen=True)
class ProbedFunction:
    """A function by its symbol and module (`a.out` is the program itself), and the offsets where it is left."""

    module: str
    symbol: str
    exits: tuple[int, ...]


def read_script(dtrace: Dtrace, question: Question) -> str:
    """The script for this system. Raises CapabilityError where there is none."""
    script = _SCRIPTS.get(dtrace.system, {}).get(question)
    if script is None:
        raise CapabilityError(f"no DTrace script for {question} on {dtrace.system}", "--backend bpf")
    return (Path(data_dir("probes")) / "dtrace" / script).read_text()


def render_script(text: str, *, pid: int, functions: str = "*", module: str = "a.out", frames: int = 40) -> str:
    """A script with its parameters put in. Raises UsageError for any that could be more than a parameter."""
    if not 0 < pid < 1 << 31:
        raise UsageError(f"{pid} is not a process id", "ps -e lists them")
    if not 0 < frames <= MAX_FRAMES:
        raise UsageError(f"{frames} frames make no sense", f"up to {MAX_FRAMES}")
    if not _FUNCTIONS.fullmatch(functions):
        raise UsageError(
            f"DTrace takes names with * and ?, not {functions[:60]!r}",
            "'handle_slave*'; a C++ function by its mangled name, '*handle_slave*'",
        )
    if not _MODULE.fullmatch(module):
        raise UsageError(f"not a module's name: {module[:60]!r}", "a.out is the program itself")
    return _fill(text, {"PID": str(pid), "FUNCTIONS": functions, "MODULE": module, "FRAMES": str(frames)})


def render_probes(text: str, *, pid: int, probes: Sequence[ProbedFunction]) -> str:
    """The Linux function profile with a probe per entry and per exit. Raises UsageError as `render` does."""
    if not probes:
        raise UsageError("no function to probe", "powerprof profile shows the functions that run")
    for probe in probes:
        if not _SYMBOL.fullmatch(probe.symbol) or not _MODULE.fullmatch(probe.module):
            raise UsageError(f"DTrace cannot name {probe.module[:60]}:{probe.symbol[:60]}", "--backend bpf can")
    places = [(f"pid{pid}:{probe.module}:{probe.symbol}", probe.exits) for probe in probes]
    entries = [f"{place}:entry" for place, _ in places]
    # A function without an exit (one that never returns) leaves the clause to the others; none has any: a probe that
    # never fires keeps the script whole.
    exits = [f"{place}:{offset:x}" for place, offsets in places for offset in offsets] or ["dtrace:::ERROR"]
    filled = _fill(text, {"ENTRIES": ",\n".join(entries), "EXITS": ",\n".join(exits)})
    return render_script(filled, pid=pid)


def _fill(text: str, values: dict[str, str]) -> str:
    return re.sub(r"@([A-Z]+)@", lambda match: values.get(match[1], match[0]), text)
