# SPDX-License-Identifier: Apache-2.0
"""Kinds of records, their schemas, the saved ones, and how a report is written to a file."""
