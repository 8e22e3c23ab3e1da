# SPDX-License-Identifier: Apache-2.0
"""The base class of objects that must be closed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class Closeable(ABC):
    """A context manager that calls `close` on exit, and also if `_open` fails."""

    def _open(self) -> None:  # noqa: B027 (optional for subclasses)
        """Open on entry of the `with` block. The default does nothing, for classes that open in the constructor."""

    @abstractmethod
    def close(self) -> None:
        """Release everything that was opened, also after a partial opening. A second call does nothing."""

    def __enter__(self) -> Self:
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
