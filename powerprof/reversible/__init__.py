# SPDX-License-Identifier: Apache-2.0
"""Settings of others that are changed for a while, and put back however powerprof ends."""
