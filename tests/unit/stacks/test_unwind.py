# SPDX-License-Identifier: Apache-2.0
"""Stacks of sleeping threads, taken by ptrace, against the chains that the programs are known to sleep in."""

from __future__ import annotations

import gc
import os
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from powerprof.stacks.image import snapshot
from powerprof.stacks.registers import X86_64, SavedStack, this_machine
from powerprof.stacks.store import TableStore
from powerprof.stacks.symbolizer import Frame, Symbolizer
from powerprof.stacks.unwind import Unwinder
from powerprof.stacks.walker import Walker
from powerprof.system.errors import DataError
from tests.programs.ground_truth import running
from tests.programs.ptracing import capture, wait_asleep

C_NAMES = ("nanosleep", "poll", "epoll", "condvar", "timerfd", "pipe_waker", "pipe", "futex_waker", "futex")


def expected(name: str) -> list[str]:
    wait = f"wake_{name.removesuffix('_waker')}" if name.endswith("_waker") else f"wait_{name}"
    return [wait, f"{name}_level2", f"{name}_level1", f"{name}_thread"]


def saved(pid: int, tid: int) -> SavedStack:
    wait_asleep(pid, tid)
    return SavedStack(pid, tid, *capture(pid, tid))


def own(frames: tuple[Frame, ...], module: str) -> list[str]:
    return [frame.label for frame in frames if frame.module == module and not frame.inlined]


@pytest.mark.parametrize("program", ["sleepers", "sleepers-fp-no-eh", "sleepers-no-eh", "sleepers-debug-frame"])
def test_stacks_are_complete_for_each_kind_of_unwind_table(built, program):
    with running(built(program)) as info:
        image = snapshot(info["pid"])
        unwinder = Unwinder()
        symbolizer = Symbolizer(image, unwinder.store, inline=False)
        for name in C_NAMES:
            result = unwinder.unwind(image, saved(info["pid"], info["threads"][name]["tid"]))
            frames = symbolizer.stack(result)
            assert (result.complete, result.reason) == (True, None)
            assert own(frames, program) == expected(name)
            assert frames[0].module == "libc.so.6"


def test_stack_of_static_program_is_complete(built):
    with running(built("sleepers-static")) as info:
        image = snapshot(info["pid"])
        result = Unwinder().unwind(image, saved(info["pid"], info["threads"]["condvar"]["tid"]))
        names = [frame.label for frame in Symbolizer(image).stack(result)]
    assert result.complete
    # An alias, of which glibc 2.41 has the other one.
    assert [*names[-6:-1], names[-1].strip("_")] == [*expected("condvar"), "start_thread", "clone3"]


def test_functions_of_stripped_program_stay_distinct(built):
    with running(built("sleepers-stripped")) as info:
        image = snapshot(info["pid"])
        unwinder = Unwinder()
        symbolizer = Symbolizer(image, unwinder.store)
        frames = {
            name: [
                one
                for one in symbolizer.stack(unwinder.unwind(image, saved(info["pid"], thread["tid"])))
                if one.module == "sleepers-stripped"
            ]
            for name, thread in info["threads"].items()
        }
    assert all(len(chain) == 4 for chain in frames.values())
    starts = {one.function_start for chain in frames.values() for one in chain}
    # 9 threads, 4 functions each, none shared.
    assert len(starts) == 36
    for chain in frames.values():
        for one in chain:
            assert one.function is None
            assert one.label == f"sleepers-stripped+{one.function_start:#x}"
            assert 0 < one.offset < 400


@pytest.mark.parametrize("program", ["sleepers-cpp", "sleepers-cpp-fp"])
def test_cpp_methods_are_demangled(built, program):
    with running(built(program)) as info:
        image = snapshot(info["pid"])
        result = Unwinder().unwind(image, saved(info["pid"], info["threads"]["condvar"]["tid"]))
        frames = Symbolizer(image).stack(result)
    assert result.complete
    names = [name.partition("(")[0] for name in own(frames, program)]
    assert names == [
        "ground::Condvar::deepest",
        "ground::Worker<ground::Condvar>::outer",
        "ground::Worker<ground::Condvar>::run",
        "ground::Worker<ground::Condvar>::body",
    ]
    inlined = [frame.function for frame in frames if frame.inlined and frame.module == program]
    # Only the variant with -g can tell that `middle` was inlined.
    worker = "ground::Worker<ground::Condvar>::middle(long)"
    assert inlined == ([worker] if program == "sleepers-cpp" else [])


@pytest.mark.parametrize("program", ["sleepers-rust", "sleepers-rust-v0"])
def test_rust_functions_have_no_hashes(built, program):
    with running(built(program)) as info:
        image = snapshot(info["pid"])
        for name in ("sleep", "park"):
            result = Unwinder().unwind(image, saved(info["pid"], info["threads"][name]["tid"]))
            names = own(Symbolizer(image).stack(result), program)
            assert result.complete
            at = names.index(f"sleepers::wait_{name}")
            wanted = [f"wait_{name}", f"{name}_level2", f"{name}_level1"]
            assert names[at : at + 3] == [f"sleepers::{one}" for one in wanted]


def test_go_is_unwound_by_compressed_debug_frame(built):
    with running(built("sleepers-go")) as info:
        image = snapshot(info["pid"])
        names: list[str] = []
        # Go's scheduler may put the thread to sleep elsewhere on its way there.
        for _ in range(50):
            result = Unwinder().unwind(image, saved(info["pid"], info["threads"]["timerfd"]["tid"]))
            names = own(Symbolizer(image).stack(result), "sleepers-go")
            assert result.complete
            if "main.waitTimerfd" in names:
                break
    at = names.index("main.waitTimerfd")
    assert names[at : at + 3] == ["main.waitTimerfd", "main.timerfdLevel1", "main.timerfdThread"]
    assert names[-1].startswith("runtime.goexit")


@pytest.mark.parametrize("program", ["signals", "signals-musl"])
def test_signal_frame_is_crossed_with_exact_pc(built, program):
    with running(built(program)) as info:
        image = snapshot(info["pid"])
        result = Unwinder().unwind(image, saved(info["pid"], info["threads"]["handler"]["tid"]))
        frames = Symbolizer(image).stack(result)
    assert result.complete
    assert own(frames, program) == ["handler", "raise_level2", "raise_level1", "thread"]
    labels = [frame.label for frame in frames]
    assert labels.count("[signal]") == 1
    assert labels[labels.index("handler") + 1] == "[signal]"
    at = next(index for index, frame in enumerate(frames) if frame.function == "raise_level2")
    # `ud2` is the first instruction of raise_level2: the byte before it is another function.
    assert frames[at].offset == 0
    assert [exact for _pc, exact in zip(result.pcs, result.exact, strict=True)].count(True) == 2


def test_truncated_stack_has_a_reason(built):
    with running(built("sleepers")) as info:
        image = snapshot(info["pid"])
        stack = saved(info["pid"], info["threads"]["nanosleep"]["tid"])
    result = Unwinder().unwind(image, SavedStack(stack.pid, stack.tid, stack.registers, b""))
    assert (result.complete, len(result.pcs)) == (False, 1)
    short = Unwinder().unwind(image, SavedStack(stack.pid, stack.tid, stack.registers, stack.stack[:64]))
    assert not short.complete
    assert short.reason == "the copied stack ends after 64 bytes"


def test_equal_stack_is_walked_once(built):
    with running(built("sleepers")) as info:
        image = snapshot(info["pid"])
        stack = saved(info["pid"], info["threads"]["nanosleep"]["tid"])
    unwinder = Unwinder()
    first = unwinder.unwind(image, stack)
    # The far end of the copy holds nothing that the walk reads.
    garbage = SavedStack(stack.pid, stack.tid, stack.registers, stack.stack[:-8] + b"\xee" * 8)
    assert unwinder.unwind(image, garbage) == first
    assert unwinder.walks_count == 1
    # Another saved return address is another stack.
    broken = SavedStack(stack.pid, stack.tid, stack.registers, b"\x01" * len(stack.stack))
    assert unwinder.unwind(image, broken) != first
    assert unwinder.walks_count == 2


def test_registers_of_unknown_size_are_refused(built):
    with running(built("sleepers")) as info:
        image = snapshot(info["pid"])
    with pytest.raises(DataError, match="264 bytes"):
        Unwinder().unwind(image, SavedStack(1, 1, bytes(264), b""))


def test_frames_of_an_unreadable_module_have_no_names(built):
    with running(built("sleepers")) as info:
        image = snapshot(info["pid"])
        stack = saved(info["pid"], info["threads"]["epoll"]["tid"])
    # Of a saved image the file may be replaced on this host: the build id differs.
    other = [msgspec.structs.replace(one, build_id="00" * 20, inode=one.inode and 1) for one in image.mappings]
    image = msgspec.structs.replace(image, pid=4194303, mappings=tuple(other))
    result = Unwinder().unwind(image, stack)
    assert not result.complete
    assert "replaced on disk" in result.reason
    frame = Symbolizer(image).frames(int.from_bytes(stack.registers[16 * 8 : 17 * 8], "little"))[0]
    assert (frame.function, frame.module, frame.function_start) == (None, "libc.so.6", None)
    assert frame.label == f"libc.so.6+{frame.vaddr:#x}"


def test_vdso_frame_is_unwound_and_named():
    image = snapshot(os.getpid())
    vdso = next(one for one in image.mappings if one.path == "[vdso]")
    libc = next(one for one in image.mappings if one.module == "libc.so.6")
    tables = TableStore().tables(image, vdso)
    (start, _end), *_ = sorted(tables.symbols.ranges_of({"__vdso_clock_gettime", "clock_gettime"}))
    # At its first instruction the return address lies at sp.
    stack = (libc.start + 64).to_bytes(8, "little") + bytes(512)
    registers = X86_64.pack({"ip": vdso.start + start, "sp": 0x7000_0000})
    result = Unwinder().unwind(image, SavedStack(1, 1, registers, stack))
    assert result.pcs[:2] == (vdso.start + start, libc.start + 64)
    frame = Symbolizer(image).stack(result)[0]
    assert (frame.module, frame.offset) == ("[vdso]", 0)
    assert frame.function.endswith("clock_gettime")


def test_deleted_program_is_read_by_root(built, tmp_path):
    # map_files needs root: without it the stack ends there, with its reason.
    wanted = os.geteuid() == 0
    copy = Path(tmp_path / "gone")
    copy.write_bytes(built("sleepers").read_bytes())
    copy.chmod(0o700)
    with running(copy) as info:
        copy.unlink()
        image = snapshot(info["pid"])
        result = Unwinder().unwind(image, saved(info["pid"], info["threads"]["poll"]["tid"]))
        names = own(Symbolizer(image).stack(result), "gone")
    assert (result.complete, names == expected("poll")) == (wanted, wanted)


def test_tables_in_memory_are_bounded(built):
    with ExitStack() as stack:
        looked = []
        for _ in range(6):
            info = stack.enter_context(running(built("sleepers")))
            looked.append((snapshot(info["pid"]), saved(info["pid"], info["threads"]["nanosleep"]["tid"])))
        unbounded = Unwinder(tables_bytes=1 << 40)
        whole = [unbounded.unwind(*one) for one in looked]
        each = max(walker.held_bytes for _, walker, _ in unbounded._walkers.values())
        bounded = Unwinder(tables_bytes=3 * each)
        for _ in range(2):
            for (image, found), expected_walk in zip(looked, whole, strict=True):
                assert bounded.unwind(image, found) == expected_walk
                assert sum(walker.held_bytes for _, walker, _ in bounded._walkers.values()) <= 3 * each
    # One whose tables alone are too many is walked still.
    assert Unwinder(tables_bytes=1).unwind(*looked[0]).complete


def test_walker_frees_its_tables_without_garbage_collection():
    def tables() -> int:
        return Path("/proc/self/maps").read_text().count("/memfd:")

    image = snapshot(os.getpid())
    gc.collect()
    before = tables()
    gc.disable()
    try:
        walker = Walker(image, TableStore(), this_machine())
        for mapping in image.mappings:
            walker._find_module(mapping)
        assert tables() > before
        del walker
        assert tables() == before
    finally:
        gc.enable()
