"""DTrace: finding a real one, picking and rendering scripts. The fake is a program, because a script is refused."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from powerprof.errors import CapabilityError, PowerprofError, UsageError
from powerprof.paths import data_dir
from powerprof.tracing.dtrace import Dtrace, find_dtrace, pick, render, run_dtrace
from powerprof.tracing.dtrace_output import parse_latency

SCRIPTS = sorted((data_dir("probes") / "dtrace").glob("*.d"))
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
            "#include <stdio.h>\n#include <string.h>\n#include <stdlib.h>\n"
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
    assert "powerprof attribute --functions" in str(refused.value.hint)


def test_without_dtrace_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if any(Path(folder, "dtrace").exists() for folder in ("/usr/sbin", "/sbin", "/usr/local/sbin")):
        pytest.skip("no capability: a host without dtrace")
    with pytest.raises(CapabilityError, match="dtrace is not installed") as refused:
        find_dtrace("Linux")
    assert (refused.value.exit_code, "dnf install dtrace" in str(refused.value.hint)) == (3, True)


def test_versions_are_read_and_old_linux_ones_refused(program) -> None:  # type: ignore[no-untyped-def]
    path = program('puts("dtrace: Oracle D 2.0"); puts("This is DTrace 2.0.3");')
    assert find_dtrace("Linux") == Dtrace(path, "Linux", "Oracle", (2, 0))
    program('puts("dtrace: Sun D 1.13");')
    assert find_dtrace("FreeBSD").version == (1, 13)
    with pytest.raises(CapabilityError, match=r"dtrace 1\.13 on Linux is not supported"):
        find_dtrace("Linux")
    program('puts("anything else");')
    with pytest.raises(CapabilityError, match="does not name its D language"):
        find_dtrace("SunOS")


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_has_its_scripts(system: str) -> None:
    dtrace = Dtrace(Path("/usr/sbin/dtrace"), system, "Sun", (1, 13))
    assert pick(dtrace, "function-profile").is_file()
    assert pick(dtrace, "wakeups").is_file()
    if system == "Darwin":
        with pytest.raises(CapabilityError, match="no DTrace script for sleep-wake-latency on Darwin"):
            pick(dtrace, "sleep-wake-latency")
    else:
        assert pick(dtrace, "sleep-wake-latency").is_file()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_say_what_they_are_and_render_whole(script: Path) -> None:
    text = script.read_text()
    for heading in ("Question:", "Cost:", "Privileges:", "Runs on:", "Executed:"):
        assert heading in text
    rendered = render(text, pid=4711, seconds=10, functions="handle_slave*")
    assert not re.search(r"@[A-Z]+@", rendered)
    assert "4711" in rendered and "tick-10s" in rendered
    code = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    assert code.count("{") == code.count("}") and code.count("(") == code.count(")")
    if "linux" in script.name:
        # What dtrace 2.x lacks or builds upon fbt, which kernels without kprobes do not have.
        assert "vtimestamp" not in code and "sched:::" not in code and "fbt:" not in code


@pytest.mark.parametrize(
    "functions",
    ['x:entry{system("id")}', "a b", "", "x/1/", "x,BEGIN", "@PID@", "x\ny", "`x`", "x" * 129, "ünknown", "x;"],
)
def test_patterns_that_could_leave_their_place_are_refused(functions: str) -> None:
    with pytest.raises(UsageError):
        render("pid@PID@:@MODULE@:@FUNCTIONS@:entry", pid=1, seconds=1, functions=functions)


@pytest.mark.parametrize(
    "parameters",
    [
        {"pid": 0},
        {"pid": -1},
        {"pid": 1 << 31},
        {"seconds": 0},
        {"seconds": 10**9},
        {"frames": 0},
        {"frames": 101},
        {"module": "x:y"},
        {"module": "a b"},
        {"module": "{"},
    ],
)
def test_impossible_parameters_are_refused(parameters: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        render("x", **{"pid": 1, "seconds": 1, **parameters})  # type: ignore[arg-type]


def test_a_pattern_is_put_in_as_it_is() -> None:
    text = render("pid@PID@:@MODULE@:@FUNCTIONS@:entry", pid=12, seconds=1, functions="handle_slave*", module="")
    assert text == "pid12::handle_slave*:entry"


def test_a_script_is_checked_then_run_and_its_output_parsed(program) -> None:  # type: ignore[no-untyped-def]
    program("""
        if (argc > 1 && !strcmp(argv[1], "-V")) { puts("dtrace: Sun D 1.13"); return 0; }
        for (int i = 1; i < argc; i++) if (!strcmp(argv[i], "-e")) return 0;
        fprintf(stderr, "dtrace: 12 aggregation drops on CPU 0\\n");
        puts("sleep\\t101\\t10\\t5000000\\t900000");
        puts("latency\\t101\\t10\\t40000\\t9000");
        puts("end");
    """)
    done = run_dtrace("sleep-wake-latency", 4711, 1, dtrace=find_dtrace("SunOS"))
    assert done.drops == ("dtrace: 12 aggregation drops on CPU 0",)
    (row,) = parse_latency(done)
    assert (row.tid, row.sleeps_count, row.sleep_mean_ms, row.wait_max_ms) == (101, 10, 0.5, 0.009)


def test_dtraces_complaints_end_in_one_line(program) -> None:  # type: ignore[no-untyped-def]
    program("""
        if (argc > 1 && !strcmp(argv[1], "-V")) { puts("dtrace: Sun D 1.13"); return 0; }
        fprintf(stderr, "dtrace: failed to initialize dtrace: DTrace requires additional privileges\\n"); return 1;
    """)
    with pytest.raises(CapabilityError, match="not permitted"):
        run_dtrace("wakeups", 1, 1, dtrace=find_dtrace("SunOS"))
    program("""
        if (argc > 1 && !strcmp(argv[1], "-V")) { puts("dtrace: Sun D 1.13"); return 0; }
        fprintf(stderr, "dtrace: failed to compile script x.d: line 3: syntax error near \\"{\\"\\n"); return 1;
    """)
    with pytest.raises(PowerprofError, match="refused the script: dtrace: failed to compile") as refused:
        run_dtrace("wakeups", 1, 1, dtrace=find_dtrace("SunOS"))
    assert refused.value.exit_code == 1
