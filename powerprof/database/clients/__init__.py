# SPDX-License-Identifier: Apache-2.0
"""Connections to servers, and their reports."""
