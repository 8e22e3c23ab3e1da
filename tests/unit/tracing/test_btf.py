# SPDX-License-Identifier: Apache-2.0
"""Offsets, constants and tracepoints come out of BTF as the kernel put them in."""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path

import pytest

from powerprof.system import paths
from powerprof.system.errors import CapabilityError, DataError
from powerprof.tracing.bpf.btf import Btf, read_kernel_btf
from tests.programs.cpu_time import least_cpu_s
from tests.unit.tracing.btf_blob import CONST, ENUM, ENUM64, PTR, TYPEDEF, UNION, BtfBlob

REAL = Path("/sys/kernel/btf/vmlinux")


@pytest.fixture
def btf() -> Btf:
    blob = BtfBlob()
    word = blob.integer("int", 4)
    pointer = blob.add(PTR, "", 0)
    blob.add(0x7, "timer")  # a forward declaration of the same name
    union = blob.record("", 8, [("function", pointer, 0), ("callback", pointer, 0)], kind=UNION)
    inner = blob.record("", 16, [("", union, 64)])
    const = blob.add(CONST, "", inner)
    blob.record("timer", 40, [("pid", word, 0), ("", const, 128), ("state", word, 320 - 32)])
    entity = blob.record("entity", 16, [("weight", word, 0), ("exec_start", pointer, 64)])
    alias = blob.add(TYPEDEF, "entity_t", entity)
    blob.record("task", 64, [("se", alias, 256), ("function", word, 32)])
    blob.record("flags", 4, [("whole", word, 0), ("bits", word, 3 << 24 | 5)], flag=True)
    values = struct.pack("=IIII", blob.name("SOFTIRQ_TIMER"), 1, blob.name("MINUS"), 0xFFFFFFFF)
    blob.add(ENUM, "softirq", 4, 2, values, flag=True)
    blob.add(ENUM64, "wide", 8, 1, struct.pack("=III", blob.name("BIG"), 7, 1))
    blob.tracepoint("cpu_idle", [("state", word), ("cpu_id", word)], "__traceiter_cpu_idle")
    arguments = [("irq", word), ("action", pointer)]
    blob.tracepoint("irq_handler_entry", arguments, "__bpf_trace_irq_handler_entry")
    blob.tracepoint("nameless", [("x", word)], None)
    return Btf(blob.data(), "synthetic")


@pytest.mark.parametrize(
    ("where", "field", "offset"),
    [
        ("timer", "pid", 0),
        ("timer", "state", 36),
        ("timer", "function", 24),
        ("timer", "callback", 24),  # anonymous union in an anonymous const struct
        ("task", "se.exec_start", 40),
        ("task", "function", 4),
        ("entity_t", "exec_start", 8),
        ("flags", "whole", 0),
    ],
)
def test_field_offsets(btf: Btf, where: str, field: str, offset: int) -> None:
    assert btf.field_offset(where, field) == offset
    assert btf.has_field(where, field)


@pytest.mark.parametrize(
    ("where", "field", "said"),
    [
        ("nothing", "pid", "no struct nothing"),
        ("timer", "nothing", "no field nothing"),
        ("timer", "exec_start", "no field exec_start"),
        ("task", "se.pid", "no field se.pid"),
        ("task", "function.x", "no field function.x"),
        ("flags", "bits", "bit field"),
        ("int", "x", "no struct int"),
        ("timer", "", "no field"),
    ],
)
def test_what_is_not_there_is_a_missing_capability(btf: Btf, where: str, field: str, said: str) -> None:
    with pytest.raises(CapabilityError, match=said):
        btf.field_offset(where, field)
    assert not btf.has_field(where, field)


def test_sizes(btf: Btf) -> None:
    assert (btf.struct_size("timer"), btf.struct_size("entity_t")) == (40, 16)


def test_tracepoints(btf: Btf) -> None:
    assert btf.tracepoint_arguments("cpu_idle") == ("state", "cpu_id")
    assert btf.tracepoint_arguments("irq_handler_entry") == ("irq", "action")
    assert btf.tracepoint_arguments("nameless") == ("arg0",)
    assert btf.has_tracepoint("cpu_idle")
    assert not btf.has_tracepoint("sched_switch")
    with pytest.raises(CapabilityError, match="no tracepoint sched_switch"):
        btf.tracepoint_arguments("sched_switch")


@pytest.mark.parametrize("size", [0, 23])
def test_a_file_that_is_cut_is_one_line_of_error(tmp_path: Path, size: int) -> None:
    blob = BtfBlob()
    blob.record("task", 8, [("pid", blob.integer("int", 4), 0)])
    (tmp_path / "vmlinux").write_bytes(blob.data()[:size])
    with pytest.raises(DataError, match="vmlinux: damaged"):
        read_kernel_btf(tmp_path / "vmlinux")


def test_a_kernel_without_btf_names_the_option(tmp_path: Path) -> None:
    with pytest.raises(CapabilityError) as caught:
        read_kernel_btf(tmp_path / "vmlinux")
    assert "no BTF" in caught.value.message
    assert "CONFIG_DEBUG_INFO_BTF" in str(caught.value.hint)


@pytest.mark.skipif(not REAL.exists(), reason="no capability: BTF of the running kernel")
def test_the_running_kernel() -> None:
    # 35 ms on the development machine; the bound is for slow and loaded ones.
    assert least_cpu_s(read_kernel_btf, 0.5) < 0.5
    btf = read_kernel_btf()
    assert btf.tracepoint_arguments("cpu_idle") == ("state", "cpu_id")
    assert btf.tracepoint_arguments("irq_handler_entry") == ("irq", "action")
    assert btf.field_offset("list_head", "prev") == ctypes.sizeof(ctypes.c_void_p)
    assert btf.struct_size("list_head") == 2 * ctypes.sizeof(ctypes.c_void_p)
    assert btf.field_offset("task_struct", "tgid") == btf.field_offset("task_struct", "pid") + 4
    assert 0 < btf.field_offset("hrtimer", "function") < btf.struct_size("hrtimer")


def test_answers_are_kept_for_the_same_types_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second reader of the same types does not walk them. Other types and a damaged file are walked."""
    kept = tmp_path / "kept"
    kept.mkdir()
    monkeypatch.setattr(paths, "cache_folder", lambda kind: kept)

    def answer(offset: int) -> tuple[list[object], bool]:
        blob = BtfBlob()
        word = blob.integer("int", 4)
        blob.record("task", 64, [("pid", word, 8 * offset)])
        blob.tracepoint("cpu_idle", [("state", word), ("cpu_id", word)], "__traceiter_cpu_idle")
        (tmp_path / "btf").write_bytes(blob.data())
        btf = read_kernel_btf(tmp_path / "btf")
        found = [
            btf.field_offset("task", "pid"),
            btf.has_field("task", "pid"),
            btf.struct_size("task"),
            btf.variable_id("no_such"),
            btf.tracepoint_arguments("cpu_idle"),
        ]
        btf.keep_answers()
        return found, "_index" in vars(btf)

    right = [4, True, 64, None, ("state", "cpu_id")]
    assert [answer(4), answer(4)] == [(right, True), (right, False)]
    assert answer(8) == ([8, *right[1:]], True)
    for file in kept.iterdir():
        file.write_bytes(file.read_bytes()[:-3])
    assert [answer(4), answer(4)] == [(right, True), (right, False)]
