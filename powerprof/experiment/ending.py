# SPDX-License-Identifier: Apache-2.0
"""The end of a measurement: complete, or early with the part that was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
from msgspec.structs import replace

from powerprof.measure.target_life import TargetEndedError
from powerprof.model.records import Ended, ended_by_signal
from powerprof.system.errors import Interrupted, PowerprofError


class Ending(msgspec.Struct):
    """How a measurement ended; `ended` is None if it is complete."""

    ended: Ended | None = None

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
            self.ended = self.ended or ended_by_signal(True)
        except PowerprofError as error:
            if isinstance(error, always_raised) or not has_result():
                raise
            # The figures are those of the windows before.
            lost = replace(error.ended, after_s=None) if isinstance(error, TargetEndedError) else None
            self.ended = self.ended or lost or Ended("failed", error.message)
