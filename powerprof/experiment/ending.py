# SPDX-License-Identifier: Apache-2.0
"""The end of a measurement: complete, or early with the part that was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from powerprof.system.errors import Interrupted, PowerprofError


class Ending(msgspec.Struct):
    """How a measurement ended: complete, early by a signal (`interrupted`), or by an error (`failure`, too)."""

    interrupted: bool = False
    failure: str | None = None

    @contextmanager
    def keeping(
        self, has_result: Callable[[], object], always_raised: tuple[type[PowerprofError], ...] = ()
    ) -> Iterator[None]:
        """End a block at a signal or an error and keep what was measured; raise it if there is no result yet."""
        try:
            yield
        except Interrupted:
            if not has_result():
                raise
            self.interrupted = True
        except PowerprofError as error:
            if isinstance(error, always_raised) or not has_result():
                raise
            self.interrupted, self.failure = True, self.failure or error.message
