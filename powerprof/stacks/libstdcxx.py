# SPDX-License-Identifier: Apache-2.0
"""C++ names by libstdc++.

Run as a script, it reads a name from stdin and prints its readable form within limits of memory and time. It imports
only the standard library, so that the script starts fast.
"""

from __future__ import annotations

import ctypes
import sys
from functools import lru_cache
from typing import Any

_MEMORY_BYTES = 512 << 20
_CPU_S = 1
_SHOWN = 4096


@lru_cache(maxsize=1)
def _load_library() -> Any:
    try:
        function = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
        free = ctypes.CDLL(None).free
    except (OSError, AttributeError):
        return None
    function.restype = ctypes.c_void_p
    function.argtypes = (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))
    free.argtypes = (ctypes.c_void_p,)
    return function, free


def demangle(name: str) -> str | None:
    """Return the readable form by `__cxa_demangle` (Itanium C++ ABI); None for other names or without libstdc++."""
    library = _load_library()
    data = name.encode("utf-8", "replace")
    if library is None or b"\0" in data:
        return None
    function, free = library
    status = ctypes.c_int()
    pointer = function(data, None, None, ctypes.byref(status))
    if not pointer:
        return None
    try:
        return ctypes.string_at(pointer).decode("utf-8", "replace")
    finally:
        free(pointer)


def main() -> None:
    """Demangle one name as the child process of `powerprof.stacks.demangle`."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))
    print((demangle(sys.stdin.read()) or "")[:_SHOWN])


if __name__ == "__main__":
    main()
