# SPDX-License-Identifier: Apache-2.0
"""Find a real DTrace, and run a shipped script with it for a window.

Debian's systemtap-sdt-dev installs a `dtrace` that only makes headers for static probes. It is a script, and its `-V`
does not name the D language.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal

import msgspec

from powerprof.measure.window import WindowPart, run_window
from powerprof.model.records import Ended
from powerprof.system import program_search, programs
from powerprof.system.closeable import Closeable
from powerprof.system.errors import CapabilityError, PowerprofError, UsageError
from powerprof.system.next_steps import command_line
from powerprof.system.paths import data_dir, temporary_base
from powerprof.tracing import dtrace_keeper

_BEGUN = dtrace_keeper.BEGUN
_START_LIMIT_S = 120.0
_END_LIMIT_S = 120.0
_POLL_S = 0.02
_MAX_OUTPUT_BYTES = 256 << 20
# "dtrace: Sun D 1.13", "dtrace: Oracle D 2.0", and Debian's "dtrace: D 2.0.7"
_LANGUAGE = re.compile(r"dtrace: (?:\w+ )?D (\d+)\.(\d+)(?:\.(\d+))?")
_RELEASE = re.compile(r"This is DTrace (\d+)\.(\d+)(?:\.(\d+))?")
_LOSS = re.compile(r"dtrace: (?:(\d+) .*drop|error)")
_REMEDY = (
    "Oracle's dtrace 2.x: dnf install dtrace on Oracle Linux and Fedora, apt install dtrace on Debian 14; "
    "attribute and profile need none"
)


class Dtrace(msgspec.Struct, frozen=True):
    """The host's DTrace. `version` is its release or, if it does not print that, the one of its D language."""

    path: Path
    version: tuple[int, int, int]


class DtraceRun(msgspec.Struct, frozen=True):
    """The output of a script, for `output` to parse. `losses`: DTrace's own messages about lost data.

    `tool_cpu_s`: CPU time of DTrace from its start to its end, and powerprof's in the window. `notes`: of the window.
    """

    pid: int
    stdout: str
    losses: tuple[str, ...]
    lost_count: int
    tool_cpu_s: float
    notes: tuple[str, ...] = ()
    ended: Ended | None = None


def find_dtrace() -> Dtrace:
    """Return the host's DTrace.

    Raises CapabilityError if there is none, an old one, or only SystemTap's generator of that name.
    """
    path = program_search.which("dtrace")
    if path is None:
        raise CapabilityError("dtrace is not installed", _REMEDY)
    if _is_script(path):
        raise CapabilityError(f"{path} is SystemTap's header generator, not DTrace", _REMEDY)
    # -V prints the language only (2.0 up to release 2.0.1); -Vv prints the release as well.
    done = programs.run([path, "-Vv"], timeout_s=10, check=False)
    output = done.stdout + done.stderr
    language = _LANGUAGE.search(output)
    if language is None:
        raise CapabilityError(f"{path} is not DTrace: it does not name its D language", _REMEDY)
    major, minor, patch = (int(part or 0) for part in (_RELEASE.search(output) or language).groups())
    if (major, minor) < (2, 0):
        raise CapabilityError(f"dtrace {major}.{minor} on Linux is not supported; 2.0 is", _REMEDY)
    return Dtrace(path, (major, minor, patch))


def _is_script(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False  # executable, not readable: its version tells


def run_dtrace(
    dtrace: Dtrace, script: str, pid: int, duration_s: float, *parts: WindowPart, settle: bool = False
) -> DtraceRun:
    """Trace a process by a rendered script for a window, with other parts of the window.

    The window begins with the script's BEGIN and ends by SIGINT, because DTrace's own clock (tick) can be seconds late
    on an idle CPU. Both times are in the output. `settle`: give up root's privileges once DTrace, another process, has
    started. Raises CapabilityError or PowerprofError.
    """
    words = [str(dtrace.path), "-q", *_build_process_option(script, pid), "-s", dtrace_keeper.STDIN]
    # Unnamed files leave nothing behind after kill -9.
    with _open_unnamed(script) as text, _open_unnamed() as out, _open_unnamed() as errors:
        ours, theirs = os.pipe()
        try:
            keeper = programs.start(
                programs.python_command(dtrace_keeper.__file__, str(pid), str(text.fileno()), *words, site=False),
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
            _wait_for_begin(tracing, out)
            passed = run_window(duration_s, tracing, *parts, until=tracing.ended, settle=settle)
        stdout, stderr, code = _read_text(out), _read_text(errors), tracing.exit_code()
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
        tool_cpu_s=passed.tool_cpu_s + tracing.cpu_s,
        notes=tuple(passed.notes),
        ended=passed.ended,
    )


class _Tracing(Closeable, WindowPart):
    """DTrace while it traces. It is never killed (`keeper`), because the target would die too."""

    def __init__(self, keeper: subprocess.Popen[bytes], pipe: int) -> None:
        self._keeper, self._pipe = keeper, pipe
        self.cpu_s = 0.0  # known at its end
        self.ended = os.pidfd_open(keeper.pid)

    def end(self) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
            self.has_ended(_END_LIMIT_S)

    def has_ended(self, timeout_s: float = 0.0) -> bool:
        """Wait for DTrace's end for up to `timeout_s` seconds, and keep its CPU time."""
        if self._keeper.returncode is None:
            self.cpu_s = programs.wait_for_cost(self._keeper, timeout_s) or 0.0
        return self._keeper.returncode is not None

    def close(self) -> None:
        self.end()
        os.close(self.ended)

    def exit_code(self) -> int:
        """Return DTrace's exit code.

        Raises PowerprofError if it does not end; it is not killed, which would harm the target.
        """
        code: int | None = self._keeper.returncode
        if code is None:
            raise PowerprofError(
                f"dtrace does not end (it is a child of process {self._keeper.pid})",
                "wait for it; kill -9 to dtrace can end the traced process too",
            )
        return code


def _wait_for_begin(tracing: _Tracing, out: IO[bytes]) -> None:
    """Wait until the probes are placed or DTrace has ended. Raises PowerprofError after a time limit."""
    limit = time.monotonic() + _START_LIMIT_S
    while not tracing.has_ended() and os.pread(out.fileno(), len(_BEGUN), 0) != _BEGUN:
        if time.monotonic() > limit:
            raise PowerprofError(f"dtrace did not begin to trace in {_START_LIMIT_S:g} s", "probe fewer functions")
        time.sleep(_POLL_S)


def _read_text(file: IO[bytes]) -> str:
    return os.pread(file.fileno(), _MAX_OUTPUT_BYTES, 0).decode("utf-8", "replace")


def _build_process_option(script: str, pid: int) -> list[str]:
    """Return the `-p` option, by which DTrace resolves the process's symbols, if the script needs it."""
    return ["-p", str(pid)] if f"pid{pid}:" in script or "ustack(" in script else []


@contextmanager
def _open_unnamed(text: str = "") -> Iterator[IO[bytes]]:
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
        hint = "this kernel hides a symbol that DTrace's io.d names: docs/dev/tracing.md has the workaround"
    return PowerprofError(f"dtrace {'.'.join(map(str, dtrace.version))} failed: {' / '.join(lines[-2:])[:400]}", hint)


Question = Literal["function-profile", "wakeups", "sleep-wake-latency"]

# Stack frames of each waking.
_FRAMES = 40
# Scripts take no macro arguments, so everything that is inserted into them is checked first.
_SYMBOL = re.compile(r"[A-Za-z0-9_.$]{1,1024}")
_MODULE = re.compile(r"[A-Za-z0-9_*?.+-]{0,128}")


class ProbedFunction(msgspec.Struct, frozen=True):
    """A function by its symbol and module (`a.out` is the program itself), and the offsets of its exits."""

    module: str
    symbol: str
    exits: tuple[int, ...]


def read_script(question: Question) -> str:
    """Return the text of a shipped script."""
    return (Path(data_dir("probes")) / "dtrace" / f"{question}-linux.d").read_text()


def render_script(text: str, *, pid: int) -> str:
    """Return a script for a process. Raises UsageError for an invalid pid."""
    if not 0 < pid < 1 << 31:
        raise UsageError(f"{pid} is not a process id", "ps -e lists them")
    return _fill_in(text, {"PID": str(pid), "FRAMES": str(_FRAMES)})


def render_probes(text: str, *, pid: int, probes: Sequence[ProbedFunction]) -> str:
    """Return the function profile with a probe per entry and per exit. Raises UsageError for an invalid name."""
    if not probes:
        raise UsageError(
            "no function to probe", f"to see the functions that run: {command_line('profile', same_target=True)}"
        )
    for probe in probes:
        if not _SYMBOL.fullmatch(probe.symbol) or not _MODULE.fullmatch(probe.module):
            raise UsageError(f"DTrace cannot name {probe.module[:60]}:{probe.symbol[:60]}", "--backend bpf can")
    places = [(f"pid{pid}:{probe.module}:{probe.symbol}", probe.exits) for probe in probes]
    entries = [f"{place}:entry" for place, _ in places]
    # Functions without an exit never return. If no function has an exit, a probe that never fires keeps the script
    # valid.
    exits = [f"{place}:{offset:x}" for place, offsets in places for offset in offsets] or ["dtrace:::ERROR"]
    filled = _fill_in(text, {"ENTRIES": ",\n".join(entries), "EXITS": ",\n".join(exits)})
    return render_script(filled, pid=pid)


def _fill_in(text: str, values: dict[str, str]) -> str:
    return re.sub(r"@([A-Z]+)@", lambda match: values.get(match[1], match[0]), text)
