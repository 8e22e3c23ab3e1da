# SPDX-License-Identifier: Apache-2.0
"""DTrace as a backend, and the scripts that are shipped for it."""
