# SPDX-License-Identifier: Apache-2.0
"""DTrace: finding a real one, picking and rendering scripts. The fake is a program, because a script is refused."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from powerprof.system.errors import CapabilityError, PowerprofError, UsageError
from powerprof.system.paths import data_dir
from powerprof.tracing.dtrace.backend import (
    Dtrace,
    ProbedFunction,
    find_dtrace,
    read_script,
    render_probes,
    render_script,
    run_dtrace,
)
from powerprof.tracing.dtrace.output import parse_latency

SCRIPTS = sorted((data_dir("probes") / "dtrace").rglob("*.d"))
SYSTEMS = ("Linux", "SunOS", "FreeBSD", "Darwin")


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """`program(body)` compiles a C main into a `dtrace` that is the only one on PATH."""
    if shutil.which("gcc") is None:
        pytest.skip("no capability: a C compiler (apt install gcc)")
    compiler = shutil.which("gcc")

    def make(body: str) -> Path:
        source = tmp_path / "dtrace.c"
        source.write_text(
            "#include <signal.h>\n#include <stdio.h>\n#include <string.h>\n#include <stdlib.h>\n"
            f"int main(int argc, char **argv) {{ {body} return 0; }}\n"
        )
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        subprocess.run([compiler, "-o", folder / "dtrace", source], check=True)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        return folder / "dtrace"

    return make


def test_systemtaps_header_generator_is_not_mistaken_for_dtrace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "dtrace"
    fake.write_text("#!/usr/bin/python3\nprint('Usage /usr/bin/dtrace [--help] [-h | -G] -s File.d [-o File]')\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CapabilityError, match="SystemTap's header generator, not DTrace") as refused:
        find_dtrace("Linux")
    assert refused.value.exit_code == 3
    assert "profile and functions need none" in str(refused.value.hint)


def test_without_dtrace_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if any(Path(folder, "dtrace").exists() for folder in ("/usr/sbin", "/sbin", "/usr/local/sbin")):
        pytest.skip("no capability: a host without dtrace")
    with pytest.raises(CapabilityError, match="dtrace is not installed") as refused:
        find_dtrace("Linux")
    assert (refused.value.exit_code, "dnf install dtrace" in str(refused.value.hint)) == (3, True)


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("dtrace: D 2.0.7\\nThis is DTrace 2.0.7", (2, 0, 7)),  # Debian's
        ("dtrace: D 2.0\\nThis is DTrace 2.0.1", (2, 0, 1)),
        ("dtrace: Oracle D 2.0\\nThis is DTrace 2.0.3", (2, 0, 3)),
    ],
)
def test_versions_are_the_release_where_it_is_told(program, said: str, version: tuple[int, int, int]) -> None:  # type: ignore[no-untyped-def]
    path = program(f'if (strcmp(argv[1], "-Vv")) return 2; puts("{said}");')
    assert find_dtrace("Linux") == Dtrace(path, "Linux", version)


def test_versions_are_read_and_old_linux_ones_refused(program) -> None:  # type: ignore[no-untyped-def]
    program('puts("dtrace: Sun D 1.13");')
    assert find_dtrace("FreeBSD").version == (1, 13, 0)
    with pytest.raises(CapabilityError, match=r"dtrace 1\.13 on Linux is not supported"):
        find_dtrace("Linux")
    program('puts("anything else");')
    with pytest.raises(CapabilityError, match="does not name its D language"):
        find_dtrace("SunOS")


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_has_its_scripts(system: str) -> None:
    dtrace = Dtrace(Path("/usr/sbin/dtrace"), system, (1, 13, 0))
    assert "@calls" in read_script(dtrace, "function-profile")
    assert "wakeup" in read_script(dtrace, "wakeups")
    if system == "Darwin":
        with pytest.raises(CapabilityError, match="no DTrace script for sleep-wake-latency on Darwin"):
            read_script(dtrace, "sleep-wake-latency")
    else:
        assert "latency" in read_script(dtrace, "sleep-wake-latency")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_say_what_they_are_and_render_whole(script: Path) -> None:
    text = script.read_text()
    for heading in ("Question:", "Cost:", "Privileges:", "Runs on:", "Executed:"):
        assert heading in text
    if "@ENTRIES@" in text:
        rendered = render_probes(text, pid=4711, probes=[ProbedFunction("a.out", "handle_slave_io", (0x10, 0x2F))])
    else:
        rendered = render_script(text, pid=4711, functions="handle_slave*")
    assert not re.search(r"@[A-Z]+@", rendered)
    assert "4711" in rendered
    # The window is timed from outside: a tick comes late on an idle CPU.
    assert "tick-" not in rendered
    assert rendered.count('printf("begin\\t%d\\n"') == rendered.count('printf("end\\t%d\\n"') == 1
    code = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    assert code.count("{") == code.count("}") and code.count("(") == code.count(")")
    if "linux" in script.name:
        # What dtrace 2.x lacks or builds upon fbt, which kernels without kprobes do not have.
        assert "vtimestamp" not in code and "sched:::" not in code and "fbt:" not in code
        # A return probe there is a uretprobe, and an exception that passes it ends the process.
        assert ":return" not in code
        # Setting 0 deletes; before 2.0.4 a new element could then alias a live one.
        assert not re.search(r"[^=!<>]= 0;", code)


@pytest.mark.parametrize(
    "functions",
    ['x:entry{system("id")}', "a b", "", "x/1/", "x,BEGIN", "@PID@", "x\ny", "`x`", "x" * 257, "ünknown", "x;"],
)
def test_patterns_that_could_leave_their_place_are_refused(functions: str) -> None:
    with pytest.raises(UsageError):
        render_script("pid@PID@:@MODULE@:@FUNCTIONS@:entry", pid=1, functions=functions)


@pytest.mark.parametrize(
    "parameters",
    [
        {"pid": 0},
        {"pid": -1},
        {"pid": 1 << 31},
        {"frames": 0},
        {"frames": 101},
        {"module": "x:y"},
        {"module": "a b"},
        {"module": "{"},
    ],
)
def test_impossible_parameters_are_refused(parameters: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        render_script("x", **{"pid": 1, **parameters})  # type: ignore[arg-type]


def test_a_pattern_is_put_in_as_it_is() -> None:
    text = render_script("pid@PID@:@MODULE@:@FUNCTIONS@:entry", pid=12, functions="handle_slave*", module="")
    assert text == "pid12::handle_slave*:entry"


def test_each_place_where_a_function_is_left_is_a_probe() -> None:
    probes = [
        ProbedFunction("a.out", "_Z3fooi", (0x1A, 0x44)),
        ProbedFunction("libc.so.6", "memcpy", ()),
        ProbedFunction("a.out", "bar", (7,)),
    ]
    assert render_probes("@ENTRIES@\n@EXITS@", pid=12, probes=probes) == (
        "pid12:a.out:_Z3fooi:entry,\npid12:libc.so.6:memcpy:entry,\npid12:a.out:bar:entry\n"
        "pid12:a.out:_Z3fooi:1a,\npid12:a.out:_Z3fooi:44,\npid12:a.out:bar:7"
    )
    with pytest.raises(UsageError, match="DTrace cannot name"):
        render_probes("@ENTRIES@", pid=12, probes=[ProbedFunction("a.out", "x:entry{}", ())])


def test_a_script_is_run_to_its_end_and_its_output_parsed(program) -> None:  # type: ignore[no-untyped-def]
    program("""
        if (argc > 1 && !strcmp(argv[1], "-V")) { puts("dtrace: Sun D 1.13"); return 0; }
        sigset_t set; int number; sigemptyset(&set); sigaddset(&set, SIGINT); sigprocmask(SIG_BLOCK, &set, NULL);
        puts("begin\\t1000000000"); fflush(stdout);
        sigwait(&set, &number);
        fprintf(stderr, "dtrace: 12 aggregation drops on CPU 0\\n");
        fprintf(stderr, "dtrace: error in dt_clause_0 for probe ID 5: invalid address\\n");
        puts("sleep\\t101\\t10\\t5000000\\t900000");
        puts("latency\\t101\\t10\\t40000\\t9000");
        puts("end\\t3500000000");
    """)
    started = time.monotonic()
    done = run_dtrace(find_dtrace("SunOS"), "x", 4711, 0.5)
    assert 0.5 <= time.monotonic() - started < 60
    assert (done.lost_count, len(done.losses)) == (13, 2)
    assert done.tool_cpu_s > 0
    found = parse_latency(done)
    (row,) = found.threads
    assert (found.window_s, found.lost_count) == (2.5, 13)
    assert (row.tid, row.sleeps_count, row.sleep_mean_ms, row.wait_max_ms) == (101, 10, 0.5, 0.009)


def test_dtraces_complaints_end_in_one_line(program) -> None:  # type: ignore[no-untyped-def]
    program("""
        if (argc > 1 && !strcmp(argv[1], "-V")) { puts("dtrace: Sun D 1.13"); return 0; }
        fprintf(stderr, "dtrace: failed to initialize dtrace: DTrace requires additional privileges\\n"); return 1;
    """)
    with pytest.raises(CapabilityError, match="not permitted"):
        run_dtrace(find_dtrace("SunOS"), "x", 1, 1)
    program("""
        if (argc > 1 && !strcmp(argv[1], "-V")) { puts("dtrace: Sun D 1.13"); return 0; }
        fprintf(stderr, "dtrace: failed to compile script x.d: line 3: syntax error near \\"{\\"\\n"); return 1;
    """)
    with pytest.raises(PowerprofError, match=r"dtrace 1\.13\.0 failed: dtrace: failed to compile") as refused:
        run_dtrace(find_dtrace("SunOS"), "x", 1, 1)
    assert refused.value.exit_code == 1
