# SPDX-License-Identifier: Apache-2.0
"""Compile a BPF program by bcc: `python -m powerprof.tracing.bpf.compiler [HEADERS]`, source in, packed base64 out.

It is a separate process, because clang takes 200 MB and seconds and prints to descriptor 2. Nothing is loaded or
attached here. On failure it exits with 1 and one line on stderr.
"""

from __future__ import annotations

import base64
import ctypes
import os
import sys
from pathlib import Path
from typing import Any

from powerprof.tracing.bpf.objects import Compiled, MapPlan, ProgramPlan, pack_compiled, replace_map_numbers


def _describe_map(name: str, descriptor: int) -> MapPlan:
    """Return the map as the kernel created it: the pages of a ring buffer, for example, are bytes now."""
    lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines()
    fields = {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
    return MapPlan(
        name=name,
        kind=int(fields["map_type"]),
        key_bytes=int(fields["key_size"]),
        value_bytes=int(fields["value_size"]),
        entries=int(fields["max_entries"]),
        flags=int(fields["map_flags"], 0),
    )


def compile_source(source: str) -> Compiled:
    """Compile a source by bcc. Raises bcc's exceptions."""
    import bcc

    class _Unloaded(bcc.BPF):  # type: ignore[misc]
        def _trace_autoload(self) -> None:
            """Load nothing: the caller loads programs."""

    module: Any = _Unloaded(text=source, cflags=["-Wno-macro-redefined"])
    library = bcc.libbcc.lib
    # bcc declares these only in part, so a pointer would be cut to an int.
    library.bpf_num_tables.argtypes = [ctypes.c_void_p]
    library.bpf_table_name.argtypes = library.bpf_table_fd_id.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.bpf_table_name.restype = ctypes.c_char_p
    count = library.bpf_num_tables(module.module)
    names = [library.bpf_table_name(module.module, number).decode() for number in range(count)]
    descriptors = [library.bpf_table_fd_id(module.module, number) for number in range(count)]
    places = {descriptor: place for place, descriptor in enumerate(descriptors)}
    functions = [
        library.bpf_function_name(module.module, number) for number in range(library.bpf_num_functions(module.module))
    ]
    return Compiled(
        maps=[_describe_map(*pair) for pair in zip(names, descriptors, strict=True)],
        programs=[
            ProgramPlan(name=name.decode(), code=replace_map_numbers(bytes(module.dump_func(name)), places))
            for name in functions
        ],
    )


def main() -> int:
    """Compile standard input. Return the exit status."""
    if sys.argv[1:]:
        os.environ["BCC_KERNEL_SOURCE"] = sys.argv[1]
    try:
        compiled = compile_source(sys.stdin.read())
    except ImportError as error:
        print(f"bcc cannot be imported ({error})", file=sys.stderr)
        return 3
    except Exception as error:  # bcc raises bare Exception, its only message for every failure
        print(str(error).splitlines()[0] if str(error) else type(error).__name__, file=sys.stderr)
        return 1
    print(base64.b64encode(pack_compiled(compiled)).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
