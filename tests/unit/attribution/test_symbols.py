# SPDX-License-Identifier: Apache-2.0
"""The frame to blame, and the shares of wake-ups that pass through a file and its unnamed functions."""

from __future__ import annotations

import os

import pytest
from msgspec.structs import replace

from powerprof.attribution.symbols import _MappedFiles, find_blamed_frame, only_waits
from powerprof.model.attribution import Attribution, StackFrame, Wakeup, Waking
from powerprof.stacks.image import snapshot
from tests.unit.attribution.captures import attribution, exits, own_timer
from tests.unit.live.records import wakeup, waking


def _frame(function: str | None, module: str = "mariadbd") -> StackFrame:
    return StackFrame(function=function, module=module, address="0x1")


@pytest.mark.parametrize(
    ("name", "waits"),
    [
        ("WaitEventSetWait", True),
        ("WaitLatch", True),
        ("WaitLatchOrSocket", True),
        ("ConditionVariableTimedSleep", True),
        ("pg_usleep", True),
        ("WaitLatches", False),
        ("BackgroundWriterMain", False),
    ],
)
def test_postgresql_waits_for_its_callers(name: str, waits: bool) -> None:
    assert only_waits(_frame(name, "postgres")) is waits


def test_blamed_frame_is_the_caller_of_wrappers() -> None:
    wait, wrapper, unnamed = _frame("pthread_cond_wait", "libc.so.6"), _frame("psi_cond_timedwait"), _frame(None)
    assert find_blamed_frame([wait, wrapper, unnamed, _frame("main")]) is unnamed
    assert find_blamed_frame([wait, wrapper]) is wrapper
    assert find_blamed_frame([wait]) is wait
    assert find_blamed_frame([]) is None


def record(wakeups: list[Wakeup], wakings: list[Waking]) -> Attribution:
    return replace(attribution(exits(own_timer(101))), wakeups=wakeups, wakings_without_exit=wakings)


def test_shares_are_of_all_wakeups_with_a_stack() -> None:
    """9 wakings of a row with 7 exits, 4 exits with unknown wakings, and 7 wakings on running CPUs: 20 in all."""
    library = next(mapping.module for mapping in snapshot(os.getpid()).mappings if mapping.module.startswith("libc."))
    poll, unnamed = _frame("poll", library), _frame(None, library)
    rows = [
        wakeup(7, wakings_count=9, stack=[poll, _frame("serve")]),
        wakeup(4, wakings_count=None, stack=[unnamed, _frame(None, "other")]),
        wakeup(50, wakings_count=60, stack=[]),
    ]
    files = _MappedFiles(
        [snapshot(os.getpid())], record(rows, [waking(wakings_count=7, stack=[unnamed, poll, _frame("work")])])
    )
    assert files.wakeups_count == 20 and files.named_percent == pytest.approx(100 * 16 / 20)
    (file,) = files.records({})
    assert file.module == library
    assert (file.wakeups_percent, file.unnamed_wakeups_percent) == (pytest.approx(100), pytest.approx(100 * 11 / 20))
    assert file.functions_count is None or file.functions_count >= (file.named_count or 0) > 0


def test_shares_without_a_trace_are_unknown() -> None:
    files = _MappedFiles([], None)
    assert (files.wakeups_count, files.named_percent, files.records({})) == (None, None, [])
