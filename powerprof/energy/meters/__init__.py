# SPDX-License-Identifier: Apache-2.0
"""Meters: one file per kind, each with the interface of `meter`."""
