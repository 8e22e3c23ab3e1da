# SPDX-License-Identifier: Apache-2.0
"""Root beside an account that means harm: what that account owns, and what it does at the same time."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

# `nobody` has an entry in passwd, which sudo's SUDO_UID is looked up in, and owns nothing.
UID = GID = 65534


@dataclass(frozen=True)
class Attacker:
    """An unprivileged account: `home` is its own folder, `secret` a file of root that it may neither read nor write."""

    home: Path
    secret: Path

    def owns(self, path: Path) -> Path:
        """Give it a file or folder."""
        os.chown(path, UID, GID, follow_symlinks=False)
        return path

    def folder(self, name: str) -> Path:
        """A folder of its own."""
        path = self.home / name
        path.mkdir(mode=0o755)
        return self.owns(path)

    def does(self, act: Callable[[], None]) -> None:
        """Do it as that account, to the end."""
        pid = self._fork(act)
        assert os.waitpid(pid, 0)[1] == 0

    @contextmanager
    def keeps_doing(self, act: Callable[[], None]) -> Iterator[None]:
        """Do it as that account again and again as long as the block lasts."""

        def forever() -> None:
            while True:
                with suppress(OSError):
                    act()

        pid = self._fork(forever)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    @staticmethod
    def _fork(act: Callable[[], None]) -> int:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.setgroups([])
                os.setresgid(GID, GID, GID)
                os.setresuid(UID, UID, UID)
                act()
                code = 0
            finally:
                os._exit(code)
        return pid


@pytest.fixture
def attacker(root: None) -> Iterator[Attacker]:
    """The account, with a home below a folder that everybody may enter."""
    top = Path(tempfile.mkdtemp(prefix="safety-", dir="/tmp"))
    try:
        top.chmod(0o755)
        home = top / "home"
        home.mkdir(mode=0o755)
        os.chown(home, UID, GID)
        (top / "root").mkdir(mode=0o700)
        secret = top / "root/secret"
        secret.write_text("of root\n")
        secret.chmod(0o600)
        yield Attacker(home, secret)
    finally:
        shutil.rmtree(top)
