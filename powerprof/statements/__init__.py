# SPDX-License-Identifier: Apache-2.0
"""Texts of statements as data: identity and normal form, from the text alone."""
