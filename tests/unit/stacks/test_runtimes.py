# SPDX-License-Identifier: Apache-2.0
"""Whose code it is that lies in memory without a file, what its functions are called, and how names are had."""

from __future__ import annotations

import pytest

from powerprof.model.attribution import StackFrame
from powerprof.report import labels
from powerprof.stacks import runtimes
from powerprof.stacks.image import Mapping, ProcessImage
from powerprof.stacks.runtimes import NODE, RUNTIMES, runtime_notes, runtime_of, translate_name
from powerprof.stacks.symbols import Symbolizer


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
    found = runtime_of(process("/usr/bin/program", file))
    assert found is not None
    assert found.key == key


@pytest.mark.parametrize("file", ["/usr/lib/libjvm.so.bak", "/usr/bin/nodetool", "/opt/rubysomething", "/usr/bin/perl"])
def test_similar_file_names_are_not_a_runtime(file):
    assert runtime_of(process("/usr/bin/program", file)) is None


def test_two_runtimes_are_ambiguous():
    assert runtime_of(process("/usr/bin/node", "/usr/lib/libjvm.so")) is None
    assert Symbolizer(process("/usr/bin/node", "/usr/lib/libjvm.so")).frames(0x900010)[0].module == "[anonymous]"
    openj9 = runtime_of(process("/usr/bin/java", "/jre/lib/j9vm/libjvm.so", "/jre/lib/default/libj9vm29.so"))
    assert openj9 is runtimes.OPENJ9


def test_unnamed_code_has_the_runtimes_module():
    frame = Symbolizer(process("/usr/bin/java", "/usr/lib/libjvm.so")).frames(0x900010)[0]
    assert (frame.function, frame.module) == (None, "[Java code]")


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
    assert translate_name(NODE, written) == told


def test_long_hostile_names_are_bounded():
    for name in ("JS:*" + " /" * 2000 + ":1:1", "JS:" + ":1" * 2000, "LazyCompile:" + "file:" * 800):
        assert len(translate_name(NODE, name)[0]) <= 4096


def test_names_of_other_runtimes_stay_unchanged():
    assert translate_name(None, "JS:*f /a.js:1:1") == ("JS:*f /a.js:1:1", None)
    assert translate_name(None, "Interpreter") == ("Interpreter", None)
    assert translate_name(runtimes.JAVA, "Interpreter") == ("[Java interpreter]", None)
    assert translate_name(runtimes.JAVA, "int A.f(int)") == ("int A.f(int)", None)


def said(image: ProcessImage, *stacks: list[tuple[str | None, str]], looked_at: bool = True) -> list[str]:
    called = [
        (image.pid, [StackFrame(function=name, module=module, address="0x1") for name, module in stack])
        for stack in stacks
    ]
    return labels.texts(runtime_notes(called, {image.pid: image} if looked_at else {}))


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


def test_java_with_map_gets_a_note_on_interpreted_methods():
    stack = [("void A.f()", "perf-4716.map"), ("[Java interpreter]", "perf-4716.map")]
    assert said(JVM, stack)[0].startswith("Java: interpreted methods have no names, and callers")
    # What can be had is said rather than what cannot, in any order.
    for stacks in ((stack, [(None, "[Java code]")]), ([(None, "[Java code]")], stack)):
        found = said(JVM, *stacks)
        assert len(found) == 1
        assert "jcmd 4716" in found[0]


def test_runtime_threads_need_no_note():
    assert said(JVM, [("WatcherThread::run()", "libjvm.so"), ("start_thread", "libc.so.6")]) == []
    assert said(process("/usr/bin/ruby3.1"), [("rb_thread_sleep", "libruby.so")]) == []


def test_node_gets_options_or_event_loop_note():
    image = process("/usr/bin/node")
    options = "--perf-basic-prof --interpreted-frames-native-stack"
    assert options in said(image, [("[Node interpreter]", "node"), ("uv_run", "node")])[0]
    assert options in said(image, [(None, "[Node code]"), ("uv_run", "node")])[0]
    assert "its event loop waits" in said(image, [("epoll_pwait", "libc.so.6"), ("uv_run", "node")])[0]
    assert said(image, [("middle", "perf-7.map"), ("uv_run", "node")]) == []
    assert said(image, [("worker", "node"), ("start_thread", "libc.so.6")]) == []


def test_idle_go_scheduler_gets_a_note():
    image = process("/srv/program")
    found = said(image, [("runtime.netpoll", "program"), ("runtime.findRunnable", "program")])
    assert len(found) == 1
    assert "no goroutine ran" in found[0]
    assert said(image, [("main.wait", "program"), ("runtime.goexit.abi0", "program")]) == []


def test_luajit_gets_a_note():
    assert "luajit -jp" in said(process("/usr/bin/luajit"), [("lj_BC_FUNCC", "luajit")])[0]
    assert said(process("/usr/sbin/nginx", "/usr/lib/libluajit-5.1.so.2"), [("epoll_wait", "libc.so.6")]) == []


@pytest.mark.parametrize("runtime", RUNTIMES, ids=lambda runtime: runtime.key)
def test_every_runtime_has_a_note_text(runtime):
    file = next((file for file, key in FILES.items() if key == runtime.key), "/jre/libj9vm29.so")
    module = "libluajit-5.1.so.2" if runtime.key == "luajit" else runtime.code
    found = said(process("/usr/bin/program", file), [(None, module)])
    assert len(found) == 1
    assert "{" not in found[0]
    assert not found[0].startswith("runtime_")


def test_process_without_image_gets_no_note():
    assert said(JVM, [(None, "[Java code]")], looked_at=False) == []
