# SPDX-License-Identifier: Apache-2.0
"""Connections to servers and what is asked of them."""
