# SPDX-License-Identifier: Apache-2.0
"""Reports as self-contained HTML files: they open from file://, print, and need no network."""
