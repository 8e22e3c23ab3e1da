# SPDX-License-Identifier: Apache-2.0
"""Monitors: a loop of traced intervals, the counters over them, and access to the counters."""
