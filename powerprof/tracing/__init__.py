# SPDX-License-Identifier: Apache-2.0
"""Tracers: BPF programs, DTrace, and the readers of their results."""
