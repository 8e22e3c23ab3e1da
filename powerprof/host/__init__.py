# SPDX-License-Identifier: Apache-2.0
"""The description and the capabilities of a host."""
