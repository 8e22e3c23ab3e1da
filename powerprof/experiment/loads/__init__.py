# SPDX-License-Identifier: Apache-2.0
"""What drives a server during a block: one module for each kind of load, all behind `Load`."""

from __future__ import annotations

from powerprof.experiment.loads.base import Context, LoadFailed, LoadOrder, LoadResult, RunningLoad
from powerprof.experiment.loads.choose import start_load

__all__ = ["Context", "LoadFailed", "LoadOrder", "LoadResult", "RunningLoad", "start_load"]
