# SPDX-License-Identifier: Apache-2.0
"""Workloads: folders of data that say what to measure; reading and finding them, and the world dataset."""
