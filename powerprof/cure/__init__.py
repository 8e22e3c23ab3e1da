# SPDX-License-Identifier: Apache-2.0
"""Tries a remedy on a live server in turns with how it is, measures both, puts it back, and says what would last."""
