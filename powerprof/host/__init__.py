# SPDX-License-Identifier: Apache-2.0
"""What this host is and what it can do: each capability a value, with the command that fixes it."""

from __future__ import annotations

from powerprof.host.describe import Capability, HostDescription, describe
from powerprof.host.survey import capabilities

__all__ = ["Capability", "HostDescription", "capabilities", "describe"]
