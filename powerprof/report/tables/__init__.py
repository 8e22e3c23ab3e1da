# SPDX-License-Identifier: Apache-2.0
"""Tables as values that every form draws, and the words and labels in them."""
