# SPDX-License-Identifier: Apache-2.0
"""Which statements use a server's CPU time, wake it and cost energy: a window → `powerprof.queries/1`."""
