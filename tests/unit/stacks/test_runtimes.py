# SPDX-License-Identifier: Apache-2.0
"""Runtimes with generated code: recognition, names and notes."""

from __future__ import annotations

import pytest

from powerprof.model.attribution import StackFrame
from powerprof.report.notes import word_notes
from powerprof.stacks import runtimes, symbolizer
from powerprof.stacks.image import Mapping, ProcessImage
from powerprof.stacks.walker import Unwound


def process(*files: str, pid: int = 7, uid: int = 0, gid: int = 0) -> ProcessImage:
    mapped = tuple(
        Mapping(start=at << 12, end=(at + 1) << 12, offset=0, path=path, device="8:1", inode=at)
        for at, path in enumerate(files, 1)
    )
    code = Mapping(start=0x900000, end=0x901000, offset=0, path="", device="0:0", inode=0)
    return ProcessImage(
        pid=pid, started_ticks=1, executable=files[0], mappings=(*mapped, code), uid=uid, gid=gid, namespace_pid=pid
    )


FILES = {
    "/usr/lib/jvm/java-17/lib/server/libjvm.so": "java",
    "/usr/bin/node": "node",
    "/usr/lib/libnode.so.108": "node",
    "/usr/lib/libluajit-5.1.so.2.1.0": "luajit",
    "/usr/bin/luajit-2.1.0-beta3": "luajit",
    "/usr/share/dotnet/libcoreclr.so": "dotnet",
    "/usr/bin/mono-sgen": "mono",
    "/usr/lib/libruby-3.3.so.3.3": "ruby",
    "/usr/sbin/php-fpm8.2": "php",
    "/usr/lib/erlang/erts-13/bin/beam.smp": "erlang",
    "/usr/lib/postgresql/15/lib/llvmjit.so": "postgres_jit",
}


@pytest.mark.parametrize(("file", "key"), FILES.items())
def test_runtime_is_recognised_by_its_files(file, key):
    found = runtimes.runtime_of(process("/usr/bin/program", file))
    assert found.key == key


@pytest.mark.parametrize("file", ["/usr/lib/libjvm.so.bak", "/usr/bin/nodetool", "/opt/rubysomething", "/usr/bin/perl"])
def test_similar_file_names_are_not_a_runtime(file):
    assert runtimes.runtime_of(process("/usr/bin/program", file)) is None


def test_two_runtimes_are_ambiguous():
    assert runtimes.runtime_of(process("/usr/bin/node", "/usr/lib/libjvm.so")) is None
    assert (
        symbolizer.Symbolizer(process("/usr/bin/node", "/usr/lib/libjvm.so")).frames(0x900010)[0].module
        == "[anonymous]"
    )
    openj9 = runtimes.runtime_of(process("/usr/bin/java", "/jre/lib/j9vm/libjvm.so", "/jre/lib/default/libj9vm29.so"))
    assert openj9 is runtimes.OPENJ9


def test_unnamed_code_has_the_runtimes_module():
    frame = symbolizer.Symbolizer(process("/usr/bin/java", "/usr/lib/libjvm.so")).frames(0x900010)[0]
    assert (frame.function, frame.module) == (None, "[Java code]")


def test_all_unnamed_code_of_a_runtime_is_one_function():
    """Its addresses are no functions. Code of a file keeps its address."""
    for files, module in ((("/usr/lib/postgresql/15/lib/llvmjit.so",), "[PostgreSQL JIT code]"), ((), "[anonymous]")):
        named = symbolizer.Symbolizer(process("/usr/bin/program", *files))
        frames = [named.frames(0x900000 + at)[0] for at in (0, 0x10, 0xFFF)]
        assert {frame.label for frame in frames} == {module}
        stacked = {
            StackFrame(function=None, module=frame.module, address=f"{frame.address:#x}").label for frame in frames
        }
        assert stacked == {module}
    for module in ("program", "[vdso]", "[unmapped]", "perf-7.map"):
        assert StackFrame(function=None, module=module, address="0x10").label != module


def test_a_stack_without_a_frame_has_no_names() -> None:
    """The walk of a thread whose first address is in no mapping has no frame."""
    assert symbolizer.Symbolizer(process("/usr/bin/java")).stack(Unwound((), False, "no mapping", ())) == ()


JAVASCRIPT = {
    "JS:*middle /srv/waits.js:4:16": ("middle", "/srv/waits.js:4"),
    "LazyCompile:~tick file:///srv/a b/app.mjs:12:3": ("tick", "file:///srv/a b/app.mjs:12"),
    "JS:^get size node:internal/timers:438:28": ("get size", "node:internal/timers:438"),
    "JS:* /srv/waits.js:1:1": ("(anonymous at waits.js:1)", "/srv/waits.js:1"),
    "JS:~ [eval]:3:1": ("(anonymous at [eval]:3)", "[eval]:3"),
    "Function:+f script.js:9:1": ("f", "script.js:9"),
    "Builtin:ArrayMap": ("Builtin:ArrayMap", None),
    "Builtin:InterpreterEntryTrampoline": ("[Node interpreter]", None),
    "JS:~name /no/position": ("JS:~name /no/position", None),
    "JS:": ("JS:", None),
    "JS:::": ("JS:::", None),
    "JS:*:1:1": ("(anonymous at :1)", ":1"),
    "BytecodeHandler:Wide": ("BytecodeHandler:Wide", None),
}


@pytest.mark.parametrize(("written", "told"), JAVASCRIPT.items())
def test_javascript_names_are_split_into_function_and_line(written, told):
    assert runtimes.translate_name(runtimes.NODE, written) == told


def test_long_hostile_names_are_bounded():
    for name in ("JS:*" + " /" * 2000 + ":1:1", "JS:" + ":1" * 2000, "LazyCompile:" + "file:" * 800):
        assert len(runtimes.translate_name(runtimes.NODE, name)[0]) <= 4096


def test_names_of_other_runtimes_stay_unchanged():
    assert runtimes.translate_name(None, "JS:*f /a.js:1:1") == ("JS:*f /a.js:1:1", None)
    assert runtimes.translate_name(None, "Interpreter") == ("Interpreter", None)
    assert runtimes.translate_name(runtimes.JAVA, "Interpreter") == ("[Java interpreter]", None)
    assert runtimes.translate_name(runtimes.JAVA, "int A.f(int)") == ("int A.f(int)", None)


def said(image: ProcessImage, *stacks: list[tuple[str | None, str]], looked_at: bool = True) -> list[str]:
    called = [
        (image.pid, [StackFrame(function=name, module=module, address="0x1") for name, module in stack])
        for stack in stacks
    ]
    return word_notes(runtimes.runtime_notes(called, {image.pid: image} if looked_at else {}))


JVM = process("/usr/bin/java", "/usr/lib/libjvm.so", pid=4716, uid=1234, gid=1235)


def test_java_without_map_gets_the_command_once():
    stack = [("Unsafe_Park", "libjvm.so"), (None, "[Java code]"), (None, "[Java code]")]
    found = said(JVM, stack, stack)
    assert len(found) == 1
    command = "`setpriv --reuid=1234 --regid=1235 --clear-groups jcmd 4716 Compiler.perfmap`"
    assert command in found[0]
    group_0 = process("/usr/bin/java", "/usr/lib/libjvm.so", uid=1234)
    assert "--reuid=1234 --regid=0 --clear-groups jcmd 7 " in said(group_0, stack)[0]
    assert "`jcmd 5 Compiler.perfmap`" in said(process("/usr/bin/java", "/usr/lib/libjvm.so", pid=5), stack)[0]


INTERPRETED = [("void A.f()", "perf-4716.map"), ("[Java interpreter]", "perf-4716.map")]


def test_java_gets_the_command_before_a_note_on_interpreted_methods():
    """A possible remedy is printed rather than what has none, in any order of stacks."""
    for stacks in ((INTERPRETED, [(None, "[Java code]")]), ([(None, "[Java code]")], INTERPRETED)):
        (found,) = said(JVM, *stacks)
        assert "jcmd 4716" in found


RUBY, NGINX = process("/usr/bin/ruby3.1"), process("/usr/sbin/nginx", "/usr/lib/libluajit-5.1.so.2")
NODE_IMAGE, GO, LUAJIT = process("/usr/bin/node"), process("/srv/program"), process("/usr/bin/luajit")
OPTIONS = "--perf-basic-prof --interpreted-frames-native-stack"


@pytest.mark.parametrize(
    ("image", "stack", "part"),
    [
        (JVM, INTERPRETED, "Java: interpreted methods have no names, and callers"),
        (JVM, [("WatcherThread::run()", "libjvm.so"), ("start_thread", "libc.so.6")], None),
        (RUBY, [("rb_thread_sleep", "libruby.so")], None),
        (NODE_IMAGE, [("[Node interpreter]", "node"), ("uv_run", "node")], OPTIONS),
        (NODE_IMAGE, [(None, "[Node code]"), ("uv_run", "node")], OPTIONS),
        (NODE_IMAGE, [("epoll_pwait", "libc.so.6"), ("uv_run", "node")], "its event loop waits"),
        (NODE_IMAGE, [("middle", "perf-7.map"), ("uv_run", "node")], None),
        (NODE_IMAGE, [("worker", "node"), ("start_thread", "libc.so.6")], None),
        (GO, [("runtime.netpoll", "program"), ("runtime.findRunnable", "program")], "the next goroutine is"),
        (GO, [("main.wait", "program"), ("runtime.goexit.abi0", "program")], None),
        (LUAJIT, [("lj_BC_FUNCC", "luajit")], "luajit -jp"),
        (NGINX, [("epoll_wait", "libc.so.6")], None),
    ],
)
def test_a_runtime_gets_a_note_if_its_names_are_missing(image, stack, part):
    found = said(image, stack)
    assert len(found) == (part is not None)
    assert part is None or part in found[0]


@pytest.mark.parametrize("runtime", runtimes.RUNTIMES, ids=lambda runtime: runtime.key)
def test_every_runtime_has_a_note_text(runtime):
    file = next((file for file, key in FILES.items() if key == runtime.key), "/jre/libj9vm29.so")
    module = "libluajit-5.1.so.2" if runtime.key == "luajit" else runtime.code
    found = said(process("/usr/bin/program", file), [(None, module)])
    assert len(found) == 1
    assert "{" not in found[0]
    assert not found[0].startswith("runtime_")


def test_process_without_image_gets_no_note():
    assert said(JVM, [(None, "[Java code]")], looked_at=False) == []
