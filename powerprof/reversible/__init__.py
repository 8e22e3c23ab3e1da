# SPDX-License-Identifier: Apache-2.0
"""Settings of other programs that are changed temporarily, and restored even if powerprof is killed."""
