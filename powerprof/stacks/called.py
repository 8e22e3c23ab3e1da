# SPDX-License-Identifier: Apache-2.0
"""What a program was called as when it was started."""

from __future__ import annotations

import re

from powerprof.files import try_text
from powerprof.paths import procfs
from powerprof.processes.reader_process import Opened, ReaderProcess

# TASK_COMM_LEN: what is as long may have been cut.
_MOST_COMM = 15
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
_PROGRAM_FOLDERS = ("/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin", "/bin", "/sbin")


def called_as(pid: int, executable: str, reader: ReaderProcess) -> str | None:
    """Return the link by which a program was started: Debian's redis-server is one to redis-check-rdb.

    The kernel takes the comm from it, but a process may choose its comm and its arguments freely: a name counts only
    if it leads, in the process's root, to the very file that runs. If the comm was cut, the file's name counts.
    """
    base = procfs() / str(pid)
    folder, _, name = executable.rpartition("/")
    comm = try_text(base / "comm") or ""
    if name.startswith(comm) or len(comm) >= _MOST_COMM or not _PLAIN_NAME.fullmatch(comm):
        return None
    program = reader.status(base / "exe")
    for place in dict.fromkeys((folder, *_PROGRAM_FOLDERS)) if program is not None else ():
        opened = reader.open_in_root(pid, base / "root", f"{place}/{comm}")
        if isinstance(opened, Opened):
            with opened:
                if program is not None and (opened.device, opened.inode) == (program.device, program.inode):
                    return comm
    return None
