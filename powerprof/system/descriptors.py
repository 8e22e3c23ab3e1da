# SPDX-License-Identifier: Apache-2.0
"""Wait until descriptors can be read or written; also files whose descriptor does not block (O_NONBLOCK)."""

from __future__ import annotations

import io
import math
import select
from collections.abc import Sequence
from typing import Any, cast


def readable(descriptors: Sequence[int], timeout_s: float | None = None) -> list[int]:
    """Return the descriptors that can be read or have ended; empty if there is none within `timeout_s` seconds."""
    return _poll(descriptors, select.POLLIN, timeout_s)


def writable(descriptors: Sequence[int], timeout_s: float | None = None) -> list[int]:
    """Return the descriptors that can be written; empty if there is none within `timeout_s` seconds."""
    return _poll(descriptors, select.POLLOUT, timeout_s)


class WaitingFile(io.FileIO):
    """An open descriptor that waits while it cannot be written or read, even if it does not block (O_NONBLOCK).

    Another process can set O_NONBLOCK on a pipe or terminal that it shares with this one. Python's own files then lose
    output.
    """

    def write(self, data: Any, /) -> int:
        """Write some of the data and return the number of bytes, at least 1."""
        # The type stubs do not know that FileIO returns None if the descriptor is full.
        while (count := cast("int | None", super().write(data))) is None:
            writable([self.fileno()])
        return count

    def readinto(self, buffer: Any, /) -> int:
        """Fill some of the buffer and return the number of bytes; 0 at the end."""
        while (count := cast("int | None", super().readinto(buffer))) is None:
            readable([self.fileno()])
        return count


def _poll(descriptors: Sequence[int], event: int, timeout_s: float | None) -> list[int]:
    # select() refuses descriptors above 1,023. A process with a thousand connections has some.
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, event)
    milliseconds = None if timeout_s is None else math.ceil(1e3 * max(0.0, timeout_s))
    return [descriptor for descriptor, _ in poll.poll(milliseconds)]
