# SPDX-License-Identifier: Apache-2.0
"""Joules: the sum over meters, the estimate where there is none, calibration, and whose they are."""
