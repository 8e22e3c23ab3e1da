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
from typing import IO, Any, Literal

import msgspec

from powerprof.measure.window import WindowPart, run_window
from powerprof.stacks.demangle import demangle
from powerprof.stacks.image import ProcessImage, snapshot
from powerprof.stacks.store import TableStore, open_probed
from powerprof.system import programs
from powerprof.system.closeable import Closeable
from powerprof.system.errors import CapabilityError, DataError, PowerprofError, UsageError
from powerprof.system.files import printable
from powerprof.system.next_steps import command_line
from powerprof.system.paths import data_dir, temporary_base
from powerprof.system.reader_process import Opened
from powerprof.tracing import dtrace_keeper
from powerprof.tracing.bpf.kernel_memory import KernelMemory
from powerprof.tracing.bpf.mapped_files import MappedFile
from powerprof.tracing.bpf.types import read_kernel_btf
from powerprof.tracing.captures import FunctionCounts, FunctionTrace
from powerprof.tracing.functions import read_exits
from powerprof.tracing.symbols import MatchedFunctions, find_functions, refuse_too_many

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
    interrupted: bool = False


def find_dtrace() -> Dtrace:
    """Return the host's DTrace.

    Raises CapabilityError if there is none, an old one, or only SystemTap's generator of that name.
    """
    path = programs.which("dtrace")
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


def run_dtrace(dtrace: Dtrace, script: str, pid: int, duration_s: float, *, settle: bool = False) -> DtraceRun:
    """Trace a process by a rendered script for a window. An interrupt ends the window early and sets `interrupted`.

    The window begins with the script's BEGIN and ends by SIGINT, because DTrace's own clock (tick) can be seconds late
    on an idle CPU. Both times are in the output. `settle`: give up root's privileges once DTrace, another process, has
    started. Raises CapabilityError or PowerprofError.
    """
    words = [str(dtrace.path), "-q", *_grab(script, pid), "-s", dtrace_keeper.STDIN]
    # Unnamed files leave nothing behind after kill -9.
    with _unnamed(script) as text, _unnamed() as out, _unnamed() as errors:
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
        tool_cpu_s=passed.tool_cpu_s + tracing.cpu_s,
        notes=tuple(passed.notes),
        interrupted=passed.interrupted is not None,
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


def _text(file: IO[bytes]) -> str:
    return os.pread(file.fileno(), _MAX_OUTPUT_BYTES, 0).decode("utf-8", "replace")


def _grab(script: str, pid: int) -> list[str]:
    """Return the `-p` option, by which DTrace resolves the process's symbols, if the script needs it."""
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
    return _fill(text, {"PID": str(pid), "FRAMES": str(_FRAMES)})


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
    filled = _fill(text, {"ENTRIES": ",\n".join(entries), "EXITS": ",\n".join(exits)})
    return render_script(filled, pid=pid)


def _fill(text: str, values: dict[str, str]) -> str:
    return re.sub(r"@([A-Z]+)@", lambda match: values.get(match[1], match[0]), text)


# Parse the output of the shipped D scripts, and profile functions by DTrace.

_SHOWN_LOSSES = 5
# `libc.so.6`__nanosleep+0x7`, `libc.so.6+0x1234`, `0x7f00…`
_FRAME = re.compile(r"(?:(?P<module>[^`]*)`)?(?P<name>.*?)(?:\+0x(?P<offset>[0-9a-f]{1,16}))?")


class DtraceFrame(msgspec.Struct, frozen=True):
    """A frame of ustack()."""

    function: str | None
    module: str | None
    offset: int | None
    text: str


class DtraceWakeup(msgspec.Struct, frozen=True):
    """The number of times one thread woke another from one call path, the waker's, innermost first."""

    sleeper_tid: int
    waker_pid: int
    waker_comm: str
    waker_tid: int
    count: int
    stack: list[DtraceFrame]


class DtraceLatency(msgspec.Struct, frozen=True, kw_only=True):
    """A thread's sleeps and its waits for a CPU once woken (None if DTrace counted none)."""

    tid: int
    sleeps_count: int
    sleep_mean_ms: float | None
    sleep_max_ms: float | None
    waits_count: int
    wait_mean_ms: float | None
    wait_max_ms: float | None


class DtraceWindow(msgspec.Struct, frozen=True, kw_only=True):
    """A window of one process. `tool_cpu_s`: see `DtraceRun`."""

    pid: int
    window_s: float
    lost_count: int
    notes: list[str]
    tool_cpu_s: float
    interrupted: bool


class WakersTrace(DtraceWindow, frozen=True, kw_only=True):
    """Wakings of a process's threads, most frequent first."""

    wakeups: list[DtraceWakeup]


class SleepsTrace(DtraceWindow, frozen=True, kw_only=True):
    """Sleeps of a process by thread, most frequent first."""

    threads: list[DtraceLatency]


def _lines(run: DtraceRun) -> tuple[list[str], float]:
    """Return the lines between the first, `begin TIME`, and the last, `end TIME` (ns), and the window in seconds."""
    lines = run.stdout.split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    edges = [line.split("\t") for line in (lines[0], lines[-1])] if len(lines) > 1 else []
    if [edge[0] for edge in edges] != ["begin", "end"] or any(len(edge) != 2 for edge in edges):
        raise DataError("dtrace output", "it ends before its end", len(lines) or None)
    begin_ns, end_ns = _number(edges[0][1], 1), _number(edges[1][1], len(lines))
    if end_ns <= begin_ns:
        raise DataError("dtrace output", "its window ends before it begins", len(lines))
    return lines[1:-1], (end_ns - begin_ns) / 1e9


def _notes(run: DtraceRun) -> list[str]:
    return [*run.notes, *(f"DTrace lost data: {loss}" for loss in run.losses[:_SHOWN_LOSSES])]


def _window(run: DtraceRun, window_s: float) -> dict[str, Any]:
    return {
        "pid": run.pid,
        "window_s": window_s,
        "lost_count": run.lost_count,
        "notes": _notes(run),
        "tool_cpu_s": run.tool_cpu_s,
        "interrupted": run.interrupted,
    }


def _number(text: str, line: int) -> int:
    if not re.fullmatch(r"-?\d{1,19}", text.strip(), re.ASCII):
        raise DataError("dtrace output", f"not a number: {text[:40]!r}", line)
    return int(text.strip())


def parse_functions(run: DtraceRun, pattern: str, refused: Sequence[tuple[str, str]] = ()) -> FunctionTrace:
    """Return the function profile as a trace of the uprobe backend, without costs and abandoned calls.

    A negative sum (a call that began before its thread's clock was known) is unknown, not zero. Raises DataError for
    damaged output.
    """
    sums: dict[tuple[str, str], dict[str, int]] = {}
    mismatches = 0
    lines, window_s = _lines(run)
    for number, line in enumerate(lines, 2):
        if not line.strip():
            continue
        words = line.split("\t")
        if words[0] == "mismatch" and len(words) == 3:
            mismatches += _number(words[2], number)
        elif words[0] in ("calls", "returns", "self_wall_ns", "self_cpu_ns") and len(words) == 4:
            key = printable(words[1]), printable(words[2])
            sums.setdefault(key, {})[words[0]] = _number(words[3], number)
        else:
            raise DataError("dtrace output", f"not a line of the function profile: {line[:60]!r}", number)
    functions = [
        FunctionCounts(
            name=demangle(name),
            module=module,
            vaddr=0,
            calls=row.get("calls", 0),
            returns=row.get("returns", 0),
            abandoned=None,
            unfinished=max(row.get("calls", 0) - row.get("returns", 0), 0),
            wall_ns=None,
            cpu_ns=None,
            self_wall_ns=_known(row, "self_wall_ns"),
            self_cpu_ns=_known(row, "self_cpu_ns"),
            children=0,
            stepped_children=0,
            stepped=False,
        )
        for (module, name), row in sorted(sums.items())
    ]
    return FunctionTrace(
        pattern=pattern,
        pids=[run.pid],
        window_s=window_s,
        functions=functions,
        hits_count=sum(function.calls for function in functions),
        cost=None,
        stepped_cost=None,
        process_cpu_s=None,
        unmatched_count=mismatches,
        too_deep_count=0,
        lost_count=run.lost_count,
        refused=list(refused),
        notes=_notes(run),
        method="dtrace",
        tool_cpu_s=run.tool_cpu_s,
        interrupted=run.interrupted,
    )


def _known(fields: dict[str, int], name: str) -> int | None:
    """Return a sum of times, or None if it is missing or negative."""
    value = fields.get(name)
    return value if value is not None and value >= 0 else None


def parse_wakeups(run: DtraceRun) -> WakersTrace:
    """Return the wakings by call path, most frequent first. Raises DataError for damaged output."""
    lines, window_s = _lines(run)
    wakeups: list[DtraceWakeup] = []
    stack: list[DtraceFrame] | None = None
    head: tuple[int, int, str, int, int] | None = None
    for number, line in enumerate(lines, 2):
        text = line.strip()
        if not text:
            continue
        if head is None:
            words = line.split("\t")
            if words[0] != "wakeup" or len(words) != 6:
                raise DataError("dtrace output", f"not a line of the wake-ups: {line[:60]!r}", number)
            sleeper, pid, waker, count = (_number(words[at], number) for at in (1, 2, 4, 5))
            head = sleeper, pid, printable(words[3]), waker, count
            stack = []
        elif text == "end of stack":
            wakeups.append(DtraceWakeup(*head, stack or []))
            head = stack = None
        elif stack is not None:
            stack.append(parse_frame(printable(text)))
    if head is not None:
        raise DataError("dtrace output", "its last stack is cut")
    return WakersTrace(
        wakeups=sorted(wakeups, key=lambda wakeup: (-wakeup.count, wakeup.sleeper_tid, wakeup.waker_tid)),
        **_window(run, window_s),
    )


def parse_frame(text: str) -> DtraceFrame:
    """Parse a line of ustack(). C++ names may contain every character except the back quote that ends the module."""
    match = _FRAME.fullmatch(text)
    if match is None or text.startswith("0x"):
        return DtraceFrame(None, None, None, text)
    offset = int(match["offset"], 16) if match["offset"] else None
    if match["module"] is None:
        # Without a symbol: module+offset.
        return DtraceFrame(None, match["name"] or None, offset, text)
    name = match["name"]
    return DtraceFrame(None if name.startswith("0x") else name or None, match["module"] or None, offset, text)


def parse_latency(run: DtraceRun) -> SleepsTrace:
    """Return sleeps and waits by thread, most sleeps first. Raises DataError for damaged output."""
    lines, window_s = _lines(run)
    sums: dict[int, dict[str, tuple[int, int, int]]] = {}
    for number, line in enumerate(lines, 2):
        if not line.strip():
            continue
        words = line.split("\t")
        if words[0] not in ("sleep", "latency") or len(words) != 5:
            raise DataError("dtrace output", f"not a line of the latencies: {line[:60]!r}", number)
        tid, count, total, longest = (_number(word, number) for word in words[1:])
        sums.setdefault(tid, {})[words[0]] = (count, total, longest)
    rows = []
    for tid, kinds in sums.items():
        sleeps, waits = kinds.get("sleep", (0, 0, 0)), kinds.get("latency", (0, 0, 0))
        rows.append(
            DtraceLatency(
                tid=tid,
                sleeps_count=sleeps[0],
                sleep_mean_ms=_mean_ms(sleeps),
                sleep_max_ms=_max_ms(sleeps),
                waits_count=waits[0],
                wait_mean_ms=_mean_ms(waits),
                wait_max_ms=_max_ms(waits),
            )
        )
    return SleepsTrace(
        threads=sorted(rows, key=lambda thread: (-thread.sleeps_count, thread.tid)), **_window(run, window_s)
    )


def _mean_ms(row: tuple[int, int, int]) -> float | None:
    return row[1] / row[0] / 1e6 if row[0] > 0 else None


def _max_ms(row: tuple[int, int, int]) -> float | None:
    return row[2] / 1e6 if row[0] > 0 else None


# powerprof finds the functions itself: DTrace matches no readable C++ name, and its return probes end a process whose
# exceptions pass them. Each exit is named by its offset instead. An offset is valid for one function only, so a symbol
# of two functions is not probed.


def trace_functions(
    dtrace: Dtrace, pid: int, pattern: str, duration_s: float, *, limit: int, settle: bool = False
) -> FunctionTrace:
    """Profile functions for one window; `settle`: see `run_dtrace`."""
    text = read_script("function-profile")
    probes, refused = _probes(pid, pattern, limit)
    if not probes:
        name, why = refused[0]
        raise UsageError(f"'{pattern}': {name} cannot be probed ({why})", "--backend bpf")
    run = run_dtrace(dtrace, render_probes(text, pid=pid, probes=probes), pid, duration_s, settle=settle)
    return parse_functions(run, pattern, refused)


def _probes(pid: int, pattern: str, limit: int) -> tuple[list[ProbedFunction], list[tuple[str, str]]]:
    image = snapshot(pid)
    functions = find_functions(image, pattern, TableStore())
    refuse_too_many([functions], pattern, limit)
    probes: list[ProbedFunction] = []
    refused = list(functions.refused)
    _require_fit(image, functions)
    for module in functions.modules:
        name = "a.out" if module.mapping.path == image.executable else module.mapping.module
        exits = read_exits(image, module)
        for function in module.functions:
            places = exits[function.vaddr]
            if function.symbol is None:
                refused.append((function.name, "no symbol of the file is its own: DTrace needs one"))
            elif isinstance(places, str):
                refused.append((function.name, f"where it returns is unknown: {places}"))
            else:
                probes.append(ProbedFunction(name, function.symbol, places))
    return probes, refused


def _require_fit(image: ProcessImage, functions: MatchedFunctions) -> None:
    """Raise UnfitFileError if a process could stop the host while DTrace places its probes, which are uprobes."""
    with KernelMemory(read_kernel_btf()) as memory:
        for module in functions.modules:
            opened = open_probed(image, module.mapping)
            if isinstance(opened, Opened):
                with opened:
                    MappedFile.find(memory, opened.fd).require_fit([image.pid])
