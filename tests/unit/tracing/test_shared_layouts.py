# SPDX-License-Identifier: Apache-2.0
"""What programs in the kernel write and their readers read lies at the same places: the compiler says where."""

from __future__ import annotations

import re
import struct
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from powerprof.tracing import (
    functions,
    idle_data,
    idle_stacks,
    offcpu,
    profile,
    statement_places,
    statement_samples,
    statement_tables,
    statements,
    syscalls,
)
from powerprof.tracing.bpf.shared_numbers import WAITS
from tests.conftest import REPOSITORY

PROBES = REPOSITORY / "probes/bpf"
Place = tuple[int, int]  # offset and bytes
# What loaders put in front of a program; the sizes do not matter here.
DEFINED = {"REGISTER_COUNT": 21, "TEXT": statement_tables.TEXT_BYTES, "FUNCTIONS": 202, "WAITS": WAITS}


@dataclass(frozen=True)
class Layout:
    """A struct of `file`, and the type that reads it: a numpy type, or a packing with the names of its fields.

    `other` has the numbers that its arrays are as long as, `called` what fields are called in C where that differs.
    `begins`: no more than the beginning is read.
    """

    file: str
    name: str
    python: np.dtype[np.void] | struct.Struct
    names: Sequence[str] = ()
    called: Mapping[str, str] = field(default_factory=dict)
    begins: bool = False
    other: str = "idle_period.h"


PROCESS = {"pid": "tgid"}
WHOSE = {"pid": "tgid", "waker_pid": "waker_tgid"}
PAIR = statement_tables._PAIR
LAYOUTS = [
    Layout("idle_period.h", "idle_exit", idle_data.IDLE_EXIT),
    Layout("idle_period.h", "cpu_state", idle_data.CPU_STATE),
    Layout("causes.h", "cause_key", idle_data.CAUSE_KEY),
    Layout("causes.h", "cause_sum", idle_data.CAUSE_SUM),
    Layout("causes.h", "cpu_total", idle_data.CPU_TOTAL),
    Layout("switch.bpf.h", "run_time", idle_data.RUN_SLOT),
    Layout("sleep_sites.bpf.h", "woken_key", idle_data.WOKEN_KEY, called=WHOSE),
    Layout("stacks.bpf.h", "stack_record", idle_data.STACK_HEADER, begins=True),
    Layout("reader_wakeup.bpf.h", "fill_level", idle_data.FILL_LEVEL),
    Layout(
        "targets.bpf.h",
        "target",
        idle_stacks._TARGET,
        ["text_low", "text_bytes", "library_low", "library_bytes", "is_measured"],
    ),
    Layout(
        "sampled_stacks.bpf.h", "target", profile._TARGET, ["text_low", "text_bytes", "library_low", "library_bytes"]
    ),
    Layout("sampled_stacks.bpf.h", "sample", profile._SAMPLE, called=PROCESS),
    Layout(
        "sampled_stacks.bpf.h",
        "user_record",
        profile._HEADER,
        ["kind", "bytes", "user", "tgid", "tid", "comm", "registers"],
        begins=True,
    ),
    Layout("sampled_stacks.bpf.h", "kernel_record", profile._KERNEL_HEADER, ["kind", "depth", "kernel"], begins=True),
    Layout("offcpu.bpf.c", "thread", offcpu._THREAD),
    Layout("offcpu.bpf.c", "waker_key", offcpu._WAKER_KEY),
    Layout("offcpu.bpf.c", "waker", offcpu._WAKER),
    Layout("syscalls.bpf.c", "call_key", syscalls._CALL_KEY),
    Layout("syscalls.bpf.c", "call", syscalls._CALL),
    Layout("syscalls.bpf.c", "file_key", syscalls._FILE_KEY),
    Layout("syscalls.bpf.c", "file_io", syscalls._FILE_IO),
    Layout("syscalls.bpf.c", "open_call", syscalls._OPEN_CALL),
    Layout("functions.bpf.c", "thread", functions._THREAD, begins=True),
    Layout("functions.bpf.c", "frame_key", functions._PLACE),
    Layout("functions.bpf.c", "frame", functions._FRAME),
    Layout("queries.bpf.c", "thread", statement_tables._THREAD, statement_tables.ThreadCounters._fields, begins=True),
    Layout(
        "exited_threads.bpf.h",
        "exited_total",
        statement_tables._PAST,
        ["threads", "cpu_ns", "wakeups", "statements", "before_ns"],
    ),
    Layout("exited_threads.bpf.h", "off_clock", statements._OFF_CLOCK, ["off_ns"]),
    Layout(
        "texts.bpf.h",
        "text",
        statement_tables._TEXT,
        ["command", "length", "hashed_bytes", "kept_bytes", "statement", "tid"],
        begins=True,
    ),
    Layout("statement_totals.bpf.h", "total_key", PAIR, ["id", "tid"]),
    Layout("statement_totals.bpf.h", "latency_key", PAIR, ["id", "bucket"]),
    Layout(
        "statement_totals.bpf.h",
        "total",
        statement_tables._TOTAL,
        ["calls", "wakeups", "faults", "wall_ns", "cpu_ns", "waits", "squares"],
    ),
    Layout("moments.bpf.c", "moment", statement_samples._MOMENT, ["id", "tid", "is_client"]),
    Layout("moments.bpf.c", "sample_count", statement_samples._MET, ["count", "comm"]),
    Layout("long_texts.bpf.h", "piece_key", PAIR, ["id", "number"]),
    Layout(
        "text_places.bpf.h",
        "place",
        statement_places._PLACE,
        ["text", "client", "mode", "entry", "activity", "limit", "running"],
    ),
]


def text_of(file: str) -> str:
    return re.sub(r"/\*.*?\*/", "", (PROBES / file).read_text(), flags=re.DOTALL)


def struct_of(text: str, name: str) -> str:
    found = re.search(rf"^struct {name} \{{.*?^\}};", text, re.DOTALL | re.MULTILINE)
    assert found is not None, f"no struct {name}"
    return found[0]


def fields_of(body: str) -> list[str]:
    """The names of a struct's fields, in their order."""
    declared = [line.strip() for line in body.partition("{")[2].rpartition("}")[0].split(";")]
    names = [re.sub(r"^(struct )?\w+\s+", "", line) for line in declared if line]
    return [name.strip().partition("[")[0] for line in names for name in line.split(",")]


def block_of(one: Layout) -> str:
    """Of C: in a scope of its own the numbers that it needs, the struct, and what prints where its fields are."""
    text, other = text_of(one.file), text_of(one.other)
    numbers = dict(re.findall(r"^#define (\w+) (0x\w+|\d+)[ \t]*$", f"{other}\n{text}", re.MULTILINE))
    numbers |= {key: str(value) for key, value in DEFINED.items()}
    body = struct_of(text, one.name)
    before = re.findall(r"^enum \w+ \{.*?\};", text, re.DOTALL | re.MULTILINE)
    every = text + "".join(text_of(header.name) for header in sorted(PROBES.glob("*.h")))
    before += [struct_of(every, inner) for inner in re.findall(r"^\s+struct (\w+) \w+;", body, re.MULTILINE)]
    within = [name for name in one.names if "." in name]
    shown = [f"SHOW({one.name}, {name});" for name in (*fields_of(body), *within)]
    return "\n".join(
        [
            *(f"#define {key} {value}" for key, value in numbers.items()),
            "{",
            *before,
            body,
            *shown,
            f'printf("= %zu\\n", sizeof(struct {one.name}));',
            "}",
            *(f"#undef {key}" for key in numbers),
        ]
    )


def places(layouts: Sequence[Layout], scratch: Path) -> list[tuple[dict[str, Place], int]]:
    """Of each struct: its fields, and its bytes, as the compiler lays them out."""
    lines = [
        "#include <stddef.h>\n#include <stdint.h>\n#include <stdio.h>",
        "typedef uint64_t u64; typedef int64_t s64; typedef uint32_t u32; typedef uint16_t u16; typedef uint8_t u8;",
        '#define SHOW(s, f) printf(#f " %zu %zu\\n", offsetof(struct s, f), sizeof(((struct s *)0)->f))',
        "int main(void) {",
        *(block_of(one) for one in layouts),
        "return 0; }",
    ]
    source, program = scratch / "layouts.c", scratch / "layouts"
    source.write_text("\n".join(lines))
    subprocess.run(["cc", "-w", "-o", program, source], check=True, timeout=60)
    found: list[tuple[dict[str, Place], int]] = []
    fields: dict[str, Place] = {}
    for line in subprocess.run([program], capture_output=True, text=True, check=True, timeout=60).stdout.splitlines():
        name, *numbers = line.split()
        if name == "=":
            found.append((fields, int(numbers[0])))
            fields = {}
        else:
            fields[name] = int(numbers[0]), int(numbers[1])
    return found


def read(one: Layout) -> tuple[dict[str, Place], int]:
    """The same of what Python reads."""
    if isinstance(one.python, np.dtype):
        fields = one.python.fields or {}
        return {name: (of[1], of[0].itemsize) for name, of in fields.items()}, one.python.itemsize
    found: list[Place] = []
    at = 0
    for count, code in re.findall(r"(\d*)([a-zA-Z])", one.python.format.lstrip("<=")):
        size = struct.calcsize(f"={code}")
        for _ in range(1 if code == "s" else int(count or 1)):
            bytes_count = size * int(count or 1) if code == "s" else size
            if code != "x":
                found.append((at, bytes_count))
            at += bytes_count
    assert at == one.python.size
    return dict(zip(one.names, found, strict=True)), at


def test_every_field_lies_where_it_is_read(tmp_path: Path) -> None:
    for one, (fields, size) in zip(LAYOUTS, places(LAYOUTS, tmp_path), strict=True):
        mine, bytes_count = read(one)
        assert mine == {name: fields.get(one.called.get(name, name)) for name in mine}, one
        assert one.begins or bytes_count == size, one


def test_no_layout_is_left_out() -> None:
    """Every type that tracing reads bytes by is above, or is made of those that are."""
    compared = {id(one.python) for one in LAYOUTS}
    made = {id(kind) for kind in (idle_data.CAUSE, idle_data.RUN_TIME, idle_data.WOKEN, idle_data.WOKEN_COUNT)}
    modules = (
        idle_data,
        idle_stacks,
        offcpu,
        syscalls,
        profile,
        functions,
        statement_places,
        statement_samples,
        statement_tables,
        statements,
    )
    found = {
        f"{module.__name__}.{name}"
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, np.dtype | struct.Struct) and id(value) not in compared | made
    }
    assert found == set()
