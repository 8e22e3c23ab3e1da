# SPDX-License-Identifier: Apache-2.0
"""Tables as text for others: CSV and Markdown."""
