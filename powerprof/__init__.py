# SPDX-License-Identifier: Apache-2.0
"""Power-efficiency profiling for database servers on Linux."""

__version__ = "0.2.0"
