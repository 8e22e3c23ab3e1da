# SPDX-License-Identifier: Apache-2.0
"""Python functions in the place of the C function that runs them."""

from __future__ import annotations

from powerprof.attribution.sites import Call, merge_calls, split_runs
from powerprof.model.attribution import StackFrame
from powerprof.stacks.interpreter import PythonFrame

LOOP = "_PyEval_EvalFrameDefault"


def calls(*names: str) -> list[Call]:
    return [
        (at, (StackFrame(function=name, module="python3", address=f"{at:#x}"),)) for at, name in enumerate(names, 1)
    ]


def frame(name: str, *, begins: bool = False, is_shim: bool = False) -> PythonFrame:
    return PythonFrame(1, 0x1000, 0x2000, name, f"/srv/{name}.py", 7, begins, is_shim)


def names(merged: list[Call] | None) -> list[str] | None:
    return None if merged is None else [one.label for _, frames in merged for one in frames]


def test_each_interpreter_loop_is_replaced_by_its_functions() -> None:
    stack = calls("nanosleep", "time_sleep", LOOP, "gen_iternext", f"{LOOP}.cold", "thread_run", "clone3")
    expected = [
        "nanosleep",
        "time_sleep",
        "a (a.py:7)",
        "b (b.py:7)",
        "gen_iternext",
        "c (c.py:7)",
        "thread_run",
        "clone3",
    ]
    first = [frame("a"), frame("b", begins=True), frame("c", begins=True)]
    assert names(merge_calls(stack, split_runs(first, whole=True), complete=True)) == expected
    shim = frame("", begins=True, is_shim=True)
    later = [frame("a"), frame("b"), shim, frame("c"), shim]
    assert names(merge_calls(stack, split_runs(later, whole=True), complete=True)) == expected


def test_inconsistent_chain_is_left_out() -> None:
    chain = [frame("a", begins=True), frame("b", begins=True)]
    assert merge_calls(calls("x", LOOP, "clone3"), split_runs(chain, whole=True), complete=True) is None
    assert merge_calls(calls("x", LOOP, LOOP, LOOP, "clone3"), split_runs(chain, whole=True), complete=True) is None


def test_truncated_chain_or_stack_is_merged() -> None:
    chain = [frame("a", begins=True), frame("b", begins=True)]
    assert names(merge_calls(calls("x", LOOP), split_runs(chain, whole=True), complete=False)) == [
        "x",
        "a (a.py:7)",
        "b (b.py:7)",
    ]
    cut = split_runs(chain[:1], whole=False)
    assert names(merge_calls(calls("x", LOOP, LOOP, "y"), cut, complete=True)) == ["x", "a (a.py:7)", LOOP, "y"]


def test_unnamed_python_frame_has_its_address() -> None:
    unknown = PythonFrame(1, 0x1000, 0x2000 | 1 << 56, begins=True)
    assert names(merge_calls(calls(LOOP), split_runs([unknown], whole=True), complete=True)) == ["[Python] 0x2000"]


def test_shim_keeps_the_loop_frame() -> None:
    shim = frame("", begins=True, is_shim=True)
    assert names(merge_calls(calls("x", LOOP, "clone3"), split_runs([shim], whole=True), complete=True)) == [
        "x",
        LOOP,
        "clone3",
    ]
    assert names(merge_calls([], split_runs([frame("a", begins=True)], whole=True), complete=False)) == ["a (a.py:7)"]
