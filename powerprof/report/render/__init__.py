# SPDX-License-Identifier: Apache-2.0
"""The forms of a report: each draws any document, and decides nothing about its content."""
