# SPDX-License-Identifier: Apache-2.0
"""Remove uprobes later: `python -m powerprof.tracing.bpf.detacher ADDRESS,… DESCRIPTOR…`.

If a process keeps its memory map locked when probes end, their removal would stop all forks of the host until it
unlocks. So this helper process keeps the links, which count nothing any more, until the locks are free.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from powerprof.system import programs
from powerprof.tracing.bpf.kernel_memory import KernelMemory
from powerprof.tracing.bpf.mapped_files import MappedFile
from powerprof.tracing.bpf.types import read_kernel_btf

_PAUSE_S, _MOST_S = 0.5, 3600.0


def leave(links: Sequence[int], addresses: Sequence[int]) -> None:
    """Hand links over to a helper process. `addresses`: of the mappings of their files, which the links keep valid."""
    words = (",".join(f"{address:x}" for address in addresses), *map(str, links))
    try:
        programs.start(
            programs.python_command("-m", "powerprof.tracing.bpf.detacher", *words), pass_fds=links, dies_with_us=False
        )
    finally:
        for link in links:
            os.close(link)


def main() -> None:
    """Wait until no process that maps the files keeps its memory map locked, then end: the kernel closes the links."""
    with KernelMemory(read_kernel_btf()) as memory:
        files = [MappedFile(memory, int(word, 16)) for word in sys.argv[1].split(",")]
        end_s = time.monotonic() + _MOST_S
        while time.monotonic() < end_s and not all(file.wait_until_free() for file in files):
            time.sleep(_PAUSE_S)


if __name__ == "__main__":
    main()
