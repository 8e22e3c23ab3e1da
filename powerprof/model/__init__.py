# SPDX-License-Identifier: Apache-2.0
"""Records of runs, their store, and plain text."""
