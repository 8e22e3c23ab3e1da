# SPDX-License-Identifier: Apache-2.0
"""Stacks: unwinding, names of functions, debug information and runtimes."""
