# SPDX-License-Identifier: Apache-2.0
"""A bench of machines: powerprof on other kernels, CPUs and distributions, each beside programs of known truth."""
