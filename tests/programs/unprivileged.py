# SPDX-License-Identifier: Apache-2.0
"""Programs run as nobody, who can read this checkout also where it lies in somebody's closed home, such as /root."""

from __future__ import annotations

from tests.conftest import REPOSITORY

NOBODY = 65534
_BECOME = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
# In a mount namespace of its own, an open folder with nothing but the checkout covers the closed one.
_UNCOVER = """
place=$(mktemp -d)
mount --bind "$1" "$place"
mount -t tmpfs -o mode=755 none "$0"
(umask 022 && mkdir -p "$1")
mount --move "$place" "$1"
rmdir "$place"
shift
exec "$@"
"""


def as_nobody() -> tuple[str, ...]:
    """The words to put before a command that root runs."""
    closed = [str(folder) for folder in REPOSITORY.parents if not folder.stat().st_mode & 0o001]
    if not closed:
        return _BECOME
    return ("unshare", "--mount", "sh", "-ec", _UNCOVER, closed[-1], str(REPOSITORY), *_BECOME)
