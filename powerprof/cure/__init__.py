# SPDX-License-Identifier: Apache-2.0
"""Tries a remedy on a live server, alternating with the present setting, and restores the setting."""
