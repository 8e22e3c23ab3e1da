# SPDX-License-Identifier: Apache-2.0
"""Reports: every form of each kind of record."""
