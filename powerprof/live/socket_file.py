# SPDX-License-Identifier: Apache-2.0
"""The file of the unix socket of `powerprof export`."""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

from powerprof.system.acting import as_caller
from powerprof.system.errors import PowerprofError
from powerprof.system.folders import Folder

_SOCKET_MODE = 0o660


class SocketFile:
    """The file of a unix socket: a name in an open folder, used with the rights of the calling user.

    The folder stays open because a path could be changed to another folder between two steps. Root would then remove
    or make files that the caller of sudo may not.
    """

    def __init__(self, path: Path) -> None:
        """Open the folder, and remove a socket that an earlier process left.

        Raises:
            OSError: The folder or the socket is not accessible.
            PowerprofError: Another file has this name, or another process listens.
        """
        self._path, self._name = path, path.name
        self._made: tuple[int, int] | None = None
        with as_caller():
            self._folder = Folder.open(path.parent)
            try:
                self._remove_stale()
            except BaseException:
                self.close()
                raise

    @property
    def _short_path(self) -> str:
        """Return a short path by the descriptor: the address of a socket has at most 108 bytes."""
        return f"/proc/self/fd/{self._folder.handle}/{self._name}"

    def bind(self, unbound: socket.socket) -> None:
        """Make the socket file with its final mode. Raise OSError."""
        before = os.umask(0o777 & ~_SOCKET_MODE)
        try:
            with as_caller():
                unbound.bind(self._short_path)
                info = self._folder.stat(self._name)
                self._made = info.st_dev, info.st_ino
        finally:
            os.umask(before)

    def remove(self) -> None:
        """Remove the file if it is still the one that was made, and close the folder."""
        with suppress(OSError, PowerprofError), as_caller():
            info = self._folder.stat(self._name)
            if (info.st_dev, info.st_ino) == self._made:
                self._folder.remove(self._name)
        self.close()

    def close(self) -> None:
        """Close the folder."""
        if self._folder.handle >= 0:
            os.close(self._folder.handle)
            self._folder.handle = -1

    def _remove_stale(self) -> None:
        try:
            mode = self._folder.stat(self._name).st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(mode):
            raise PowerprofError(
                f"cannot listen on {self._path} (a file of another kind is there)",
                "name another path with --listen unix:PATH",
            )
        with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
            probe.connect(self._short_path)
            raise PowerprofError(
                f"cannot listen on {self._path} (another process does)",
                "end that process, or name another path with --listen unix:PATH",
            )
        self._folder.remove(self._name)
