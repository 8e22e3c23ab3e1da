# SPDX-License-Identifier: Apache-2.0
"""Samples of where CPUs run, and of page faults."""
