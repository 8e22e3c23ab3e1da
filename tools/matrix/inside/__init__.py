# SPDX-License-Identifier: Apache-2.0
"""What runs inside a machine or a root of the bench: it needs Python's own library only, and powerprof as a command."""
