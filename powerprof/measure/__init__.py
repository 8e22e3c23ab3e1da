# SPDX-License-Identifier: Apache-2.0
"""Measurement of windows: idle residency, system counters and CPU time."""
