# SPDX-License-Identifier: Apache-2.0
"""Which frames of a stack are the program's own, and which of them only wait for their caller."""

from __future__ import annotations

import re
from collections.abc import Sequence

from powerprof.attribution.records import StackFrame

_LIBRARIES = ("libc.", "libc-", "ld-", "libpthread", "libstdc++", "[vdso]", "[vsyscall]")
# Functions that only wait for their caller, in a program's own code: what waits is the caller.
_WRAPPERS = re.compile(r"(psi_|inline_mysql_|mysql_(cond|mutex|rwlock)|my_cond|safe_(cond|mutex)|native_cond|std::|__)")


def is_own(frame: StackFrame) -> bool:
    """Whether it is neither the C or C++ library's nor the kernel's door."""
    return not frame.module.startswith(_LIBRARIES)


def only_waits(frame: StackFrame) -> bool:
    """Whether it is known, by its name, to wait for whoever called it."""
    return _WRAPPERS.match(frame.function or "") is not None


def place_of(stack: Sequence[StackFrame]) -> StackFrame | None:
    """The frame to blame, named or not: the innermost that is the program's own and works; None without a stack."""
    own = [frame for frame in stack if is_own(frame)]
    working = [frame for frame in own if not only_waits(frame)]
    return next(iter([*working, *own, *stack]), None)
