# SPDX-License-Identifier: Apache-2.0
"""Joules: the sum over meters, the estimate without a meter, calibration, and the split onto consumers."""
