# SPDX-License-Identifier: Apache-2.0
"""A private temporary tree with everything that runs in it, gone on every exit path."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import tempfile
from pathlib import Path

from powerprof.database.isolation import janitor
from powerprof.database.isolation.netns import LoopbackNetwork
from powerprof.system import files, programs
from powerprof.system.closeable import Closeable
from powerprof.system.errors import PowerprofError
from powerprof.system.folders import only_root_writes

_PATIENCE_S = 20.0


class RunTree(Closeable):
    """`with RunTree() as tree:` gives a 0700 directory `powerprof-XXXXXXXX` below $TMPDIR or /tmp.

    Programs started with `tree.environment` are killed and the directory removed when the block ends, when
    powerprof is killed (by the janitor process), and when the janitor was killed and powerprof ends in order.
    Raises PowerprofError where the directory cannot be made.
    """

    def __init__(self, base: Path | None = None) -> None:
        self._base = base
        self._janitor: subprocess.Popen[bytes] | None = None
        self._pipe: int | None = None
        self._path: Path | None = None
        self._network: LoopbackNetwork | None = None
        self._extra: list[Path] = []

    @property
    def path(self) -> Path:
        """The directory."""
        if self._path is None:
            raise RuntimeError("the private directory is not there (outside its with block)")
        return self._path

    @property
    def environment(self) -> dict[str, str]:
        """What marks a program as one of this tree."""
        return {janitor.MARK: str(self.path)}

    @property
    def network(self) -> LoopbackNetwork:
        """The network of the servers and clients of this tree, made at the first need. Raises PowerprofError."""
        if self._network is None:
            self._network = LoopbackNetwork()
            self._network.__enter__()
        return self._network

    def _open(self) -> None:
        base = self._base or Path(tempfile.gettempdir())
        # Whoever may rename the tree leads root elsewhere with every path below it.
        unsafe = only_root_writes(base) if os.geteuid() == 0 and base.is_dir() else None
        if unsafe is not None:
            raise PowerprofError(f"cannot make a private directory in {base} ({unsafe})", "set TMPDIR to /tmp")
        theirs, self._pipe = os.pipe()
        answer, their_answer = os.pipe()
        try:
            self._janitor = programs.start(
                programs.python(janitor.__file__, str(os.getpid()), base, site=False),
                stdin=theirs,
                stdout=their_answer,
                dies_with_us=False,
            )
        finally:
            os.close(theirs)
            os.close(their_answer)
        with os.fdopen(answer, "rb") as stream:
            line = stream.readline() if files.readable([stream.fileno()], _PATIENCE_S) else b""
        if not line.endswith(b"\n") or line.startswith(b"!"):
            reason = line[1:].decode(errors="replace").strip().lower() or "its janitor process did not start"
            raise PowerprofError(
                f"cannot make a private directory in {base} ({reason})",
                "set TMPDIR to a directory that exists and has room",
            )
        self._path = Path(os.fsdecode(line[:-1]))

    def also_remove(self, path: Path) -> None:
        """Remove `path` with the tree, unless `keep` is called for it. Call it before the path is made."""
        self._extra.append(path)
        self._tell(b"+" + os.fsencode(path) + b"\n")

    def keep(self, path: Path) -> None:
        """`path` is complete (or gone) and no longer to be removed."""
        self._extra.remove(path)
        self._tell(b"-" + os.fsencode(path) + b"\n")

    def _tell(self, line: bytes) -> None:
        if self._pipe is None:
            return
        # A janitor that was killed breaks the pipe; then `close` is what is left to clean up.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._pipe, line)

    def close(self) -> None:
        """Kill what runs in the tree, remove it, end the janitor."""
        if self._network is not None:
            self._network.close()
            self._network = None
        if self._path is not None:
            janitor.remove_trees([str(self._path), *map(str, self._extra)])
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None
        if self._janitor is not None:
            try:
                self._janitor.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                self._janitor.kill()
                self._janitor.wait()
            self._janitor = None
        left = self._path
        self._path = None
        if left is not None and os.path.lexists(left):
            raise PowerprofError(f"cannot remove {left}", f"rm -r {left}")


def may_enter(path: Path, uid: int, gid: int) -> Path | None:
    """The first directory on the way to `path` that this user may not search; None where there is none."""
    for directory in [*reversed(path.absolute().parents), path.absolute()]:
        try:
            info = directory.stat()
        except OSError:
            return directory
        if info.st_uid == uid:
            bit = stat.S_IXUSR
        elif info.st_gid == gid:
            bit = stat.S_IXGRP
        else:
            bit = stat.S_IXOTH
        if not info.st_mode & bit:
            return directory
    return None
