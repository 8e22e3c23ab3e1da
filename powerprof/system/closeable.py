# SPDX-License-Identifier: Apache-2.0
"""The one shape of what must be closed: `with` opens it, and closes it also where the opening broke half-way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class Closeable(ABC):
    """A context manager by `close`, and by `_open` where it does not open in its constructor."""

    def _open(self) -> None:  # noqa: B027 (not every one opens anything)
        """What `with` does first; nothing where the constructor did it all."""

    @abstractmethod
    def close(self) -> None:
        """Undo everything, however far the opening came; the second time it does nothing."""

    def __enter__(self) -> Self:
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
