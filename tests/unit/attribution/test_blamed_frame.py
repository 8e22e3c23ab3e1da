# SPDX-License-Identifier: Apache-2.0
"""The frame to blame, whether or not it has a name."""

from __future__ import annotations

from powerprof.attribution.symbols import find_blamed_frame
from powerprof.model.attribution import StackFrame


def _frame(function: str | None, module: str = "mariadbd") -> StackFrame:
    return StackFrame(function=function, module=module, address="0x1")


def test_blamed_frame_is_the_caller_of_wrappers() -> None:
    wait, wrapper, unnamed = _frame("pthread_cond_wait", "libc.so.6"), _frame("psi_cond_timedwait"), _frame(None)
    assert find_blamed_frame([wait, wrapper, unnamed, _frame("main")]) is unnamed
    assert find_blamed_frame([wait, wrapper]) is wrapper
    assert find_blamed_frame([wait]) is wait
    assert find_blamed_frame([]) is None
