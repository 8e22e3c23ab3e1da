# SPDX-License-Identifier: Apache-2.0
"""One module a command: its record in the lines of a terminal."""
