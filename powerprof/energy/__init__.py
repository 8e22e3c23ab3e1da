"""Joules: the sum over meters, the estimate where there is none, calibration, and whose they are."""
