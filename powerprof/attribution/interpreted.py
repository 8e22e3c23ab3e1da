# SPDX-License-Identifier: Apache-2.0
"""Functions of an interpreter in the place of the C function that runs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from powerprof.attribution.records import StackFrame
from powerprof.stacks.pycode import PythonFrame

_LOOP = "_PyEval_EvalFrameDefault"
Call = tuple[int, tuple[StackFrame, ...]]


@dataclass(frozen=True)
class Runs:
    """Frames of one chain by the calls from C that began them, innermost first; not `whole`: the last is cut off."""

    frames: list[list[PythonFrame]]
    whole: bool


def runs(chain: Sequence[PythonFrame], whole: bool) -> Runs:
    """A chain, split where frames say that they were called from C."""
    split: list[list[PythonFrame]] = [[]]
    for frame in chain:
        if not frame.is_shim:
            split[-1].append(frame)
        if frame.begins:
            split.append([])
    if not split[-1]:
        split.pop()
    return Runs(split, whole)


def merge(calls: Sequence[Call], chain: Runs, complete: bool) -> list[Call] | None:
    """A stack's calls, innermost first, with the interpreter's functions in place of its loop; None where the two
    disagree on how often C called the interpreter. `complete`: the stack reaches the thread's start.

    Where the stack is cut off, what the chain still knows follows it.
    """
    loops = sum(_is_loop(call) for call in calls)
    more_known = len(chain.frames) - loops
    if (more_known > 0 and complete) or (more_known < 0 and chain.whole):
        return None
    merged: list[Call] = []
    left = iter(chain.frames)
    for call in calls:
        run = next(left, None) if _is_loop(call) else None
        merged += [_call(frame) for frame in run] if run else [call]
    return merged + [_call(frame) for run in left for frame in run]


def _is_loop(call: Call) -> bool:
    """Also its parts that a compiler put elsewhere: `….cold`."""
    name = call[1][-1].function
    return name is not None and name.partition(".")[0] == _LOOP


def _call(frame: PythonFrame) -> Call:
    address = frame.instruction & (1 << 56) - 1
    if frame.function is None:
        return address, (StackFrame(function=None, module="[Python]", address=f"{address:#x}"),)
    file = frame.file.rpartition("/")[2]
    place = f"{file}:{frame.line}" if frame.line else file
    source = f"{frame.file}:{frame.line}" if frame.line else frame.file
    name = f"{frame.function} ({place})"
    return address, (StackFrame(function=name, module=file, address=f"{address:#x}", source=source),)
