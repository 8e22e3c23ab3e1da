# SPDX-License-Identifier: Apache-2.0
"""Intervals, verdicts and controls: pure functions over recorded values."""
