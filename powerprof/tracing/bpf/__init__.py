# SPDX-License-Identifier: Apache-2.0
"""Programs in the kernel: compiling, loading, attaching them, their maps and rings, and what this kernel offers."""
