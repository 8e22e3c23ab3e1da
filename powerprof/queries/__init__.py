# SPDX-License-Identifier: Apache-2.0
"""CPU time, wake-ups and energy of the statements of a server: a window → `powerprof.queries/1`."""
