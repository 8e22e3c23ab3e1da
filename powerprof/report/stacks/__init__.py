# SPDX-License-Identifier: Apache-2.0
"""Weighted stacks and timelines as plain values: what flame graphs and profiles are made from."""
