# SPDX-License-Identifier: Apache-2.0
"""Enums that programs in the kernel and their readers share have the same members with the same numbers."""

from __future__ import annotations

import re
from enum import IntEnum
from pathlib import Path

import pytest

from powerprof.stacks.registers import X86_64
from powerprof.tracing.bpf import shared_enums
from powerprof.tracing.captures import statements
from powerprof.tracing.functions import tracer as functions
from powerprof.tracing.functions.open_calls import FIELDS
from powerprof.tracing.idle import joining, layout, sites
from powerprof.tracing.offcpu import tracer as offcpu
from powerprof.tracing.offcpu.tracer import STATES
from powerprof.tracing.oncpu import tracer as oncpu
from powerprof.tracing.statements import activity, dispatch
from powerprof.tracing.syscalls import tracer as syscalls
from tests.conftest import REPOSITORY

PROBES = REPOSITORY / "probes/bpf"


def enum_of(file: str, name: str, folder: Path = PROBES) -> dict[str, int]:
    """The members of a C enum, with their numbers."""
    text = re.sub(r"/\*.*?\*/", "", (folder / file).read_text(), flags=re.DOTALL)
    body = re.search(rf"enum {name} \{{(.*?)\}}", text, re.DOTALL)
    assert body is not None, f"{file} has no enum {name}"
    members: dict[str, int] = {}
    number = -1
    for member in filter(None, (word.strip() for word in body[1].split(","))):
        key, _, value = (part.strip() for part in member.partition("="))
        number = int(value, 0) if value else number + 1
        members[key] = number
    return members


# Of C: file, enum, what its members begin with, and those that only count the others.
SHARED = [
    ("idle.bpf.c", "shared_value", "SHARED_", (), shared_enums.Shared),
    ("idle.bpf.c", "counter", "COUNT_", ("COUNTERS",), layout.Count),
    ("idle_period.h", "phase", "PHASE_", (), layout.CpuPhase),
    ("idle_period.h", "evidence", "EVIDENCE_", (), layout.WakeEvidence),
    ("idle_period.h", "idle_flags", "IDLE_", (), layout.Flag),
    ("idle_period.h", "waker_context", "WAKER_", (), layout.WakerContext),
    ("running.bpf.h", "run_kind", "RUN_", (), layout.RunKind),
    ("filled.bpf.h", "filling", "(?:TABLE|RING)_", ("FILLINGS",), layout.Filling),
    ("paths.bpf.h", "path_counter", "PATH_", ("PATH_COUNTERS",), shared_enums.PathCount),
    ("functions.bpf.c", "counter", "COUNT_", ("COUNTERS",), shared_enums.FunctionCount),
    ("queries.bpf.c", "counter", "COUNT_", ("COUNTERS",), shared_enums.StatementCount),
    ("waitkinds.bpf.h", "wait", "WAIT_", ("WAITS",), shared_enums.StatementWait),
    ("moments.bpf.c", "counter", "COUNT_", ("COUNTERS",), shared_enums.MomentCount),
    ("activity.bpf.h", "message", "", (), activity.Message),
]

# Of C: file, name of a member or of a definition, and the number that its reader has.
NUMBERS = [
    ("looks.bpf.h", "STACK_SLEEPER", sites.SLEEPER),
    ("looks.bpf.h", "STACK_WAKER", sites.WAKER),
    ("looks.bpf.h", "STACK_REGISTERS", sites.REGISTERS),
    ("looks.bpf.h", "CODE_NEWBORN", layout.NEWBORN_CODE),
    ("causes.h", "CAUSE_HALF", layout.HALF),
    ("causes.h", "CAUSE_STATES", layout.CAUSE_STATES),
    ("idle_period.h", "COMM_BYTES", layout.COMM_BYTES),
    ("joins.bpf.h", "GROWS_FAMILY", joining._FAMILY),
    ("joins.bpf.h", "GROWS_GROUP", joining._GROUP),
    ("paths.bpf.h", "RECORD_USER", oncpu._USER),
    ("paths.bpf.h", "RECORD_KERNEL", oncpu._KERNEL),
    ("paths.bpf.h", "REGISTER_COUNT", len(X86_64.names)),
    ("paths.bpf.h", "REGISTER_IP", X86_64.ip),
    ("paths.bpf.h", "REGISTER_SP", X86_64.sp),
    ("functions.bpf.c", "COOKIE_STEPPED", functions._STEPPED),
    ("offcpu.bpf.c", "WHYS", offcpu._WHYS),
    ("syscalls.bpf.c", "NUMBERS", syscalls._NUMBERS),
    ("syscalls.bpf.c", "NAME_BYTES", syscalls._NAME_BYTES),
    ("queries.bpf.c", "COM_QUERY", statements.COM_QUERY),
    ("queries.bpf.c", "COM_STMT_PREPARE", statements.COM_STMT_PREPARE),
    ("queries.bpf.c", "COM_PART", statements.COM_PART),
    ("queries.bpf.c", "POSTGRESQL", dispatch.POSTGRESQL),
    ("moments.bpf.c", "POSTGRESQL", dispatch.POSTGRESQL),
]


def number_of(file: str, name: str) -> int:
    """Of a definition, or of a member of an enum."""
    text = (PROBES / file).read_text()
    if defined := re.search(rf"^#define {name} (0x\w+|\d+)\b", text, re.MULTILINE):
        return int(defined[1], 0)
    enums = [enum_of(file, enum) for enum in re.findall(r"^enum (\w+) \{", text, re.MULTILINE)]
    return next(members[name] for members in enums if name in members)


@pytest.mark.parametrize(("file", "name", "python"), NUMBERS)
def test_both_sides_have_the_same_numbers(file: str, name: str, python: int) -> None:
    assert number_of(file, name) == python


@pytest.mark.parametrize(("file", "name", "prefix", "sizes", "python"), SHARED)
def test_both_sides_have_the_same_members(
    file: str, name: str, prefix: str, sizes: tuple[str, ...], python: type[IntEnum]
) -> None:
    found = {re.sub(f"^{prefix}", "", key): value for key, value in enum_of(file, name).items() if key not in sizes}
    assert found == {key: int(value) for key, value in python.__members__.items()}


def test_fields_that_are_read_by_their_order_have_it() -> None:
    stats = [re.sub("^STAT_", "", name).lower() for name in enum_of("functions.bpf.c", "stat_field")]
    assert stats[:-1] == [name.removesuffix("_ns") for name in FIELDS]
    states = [re.sub("^WHY_", "", name).lower() for name in enum_of("offcpu.bpf.c", "why")]
    assert states[: len(STATES) + 1] == [*STATES, "preempted"]
    kinds = [re.sub("^KIND_", "", name).lower() for name in enum_of("syscalls.bpf.c", "kind")]
    assert kinds == list(syscalls.KINDS)


def test_a_member_that_moves_is_found(tmp_path: Path) -> None:
    text = (PROBES / "paths.bpf.h").read_text().replace("PATH_EVENTS, PATH_IDLE", "PATH_IDLE, PATH_EVENTS")
    (tmp_path / "paths.bpf.h").write_text(text)
    assert enum_of("paths.bpf.h", "path_counter", tmp_path)["PATH_EVENTS"] != shared_enums.PathCount.EVENTS
