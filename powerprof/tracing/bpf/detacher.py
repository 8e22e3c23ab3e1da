# SPDX-License-Identifier: Apache-2.0
"""Remove uprobes later: `python -m powerprof.tracing.bpf.detacher MULTI ADDRESS,… DESCRIPTOR…`.

If a process keeps its memory map locked when probes end, their removal would stop all forks of the host until it
unlocks. So this helper process keeps the links, which count nothing any more, until the locks are free.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence

from powerprof.system import programs
from powerprof.tracing.bpf.btf import read_kernel_btf
from powerprof.tracing.bpf.kernel_memory import KernelMemory
from powerprof.tracing.bpf.mapped_files import MappedFile, wait_until_free
from powerprof.tracing.bpf.uprobe_links import Prelude

_PAUSE_S, _MOST_S = 0.5, 3600.0
CLOSERS = 32


def close_all(links: Sequence[int], may_close: Callable[[], bool] = lambda: True) -> bool:
    """Close links if `may_close` returns True, at once. Return what it returned.

    Closing waits for RCU (40 to 160 ms each), so that threads close them at the same time. They start before the
    question, because a start takes longer than the answer may be old.
    """
    is_allowed, answered = False, threading.Event()

    def close(link: int) -> None:
        answered.wait()
        if is_allowed:
            os.close(link)

    threads = [threading.Thread(target=close, args=(link,)) for link in links]
    for thread in threads:
        thread.start()
    try:
        is_allowed = may_close()
    finally:
        answered.set()
        for thread in threads:
            thread.join()
    return is_allowed


def leave(links: Sequence[int], addresses: Sequence[int], *, multi: bool) -> None:
    """Hand links over to a helper process. `addresses`: of the mappings of their files, which the links keep valid."""
    words = (str(int(multi)), ",".join(f"{address:x}" for address in addresses), *map(str, links))
    try:
        programs.start(
            programs.python_command("-m", "powerprof.tracing.bpf.detacher", *words), pass_fds=links, dies_with_us=False
        )
    finally:
        for link in links:
            os.close(link)


def main() -> None:
    """Wait until no process that maps the files keeps its memory map locked, then close the links."""
    prelude, links = Prelude(multi=sys.argv[1] == "1"), [int(word) for word in sys.argv[3:]]
    with KernelMemory(read_kernel_btf()) as memory:
        files = [MappedFile(memory, int(word, 16)) for word in sys.argv[2].split(",")]
        end_s = time.monotonic() + _MOST_S
        while links and time.monotonic() < end_s:
            if close_all(links[:CLOSERS], lambda: wait_until_free(files, prelude.run)):
                del links[:CLOSERS]
            else:
                time.sleep(_PAUSE_S)
            close_all(prelude.take())


if __name__ == "__main__":
    main()
