# SPDX-License-Identifier: Apache-2.0
"""Calls and self time of chosen functions."""
