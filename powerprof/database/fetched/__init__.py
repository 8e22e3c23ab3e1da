# SPDX-License-Identifier: Apache-2.0
"""Servers and connectors of other releases: fetched on request, checked, kept in the cache."""
