# SPDX-License-Identifier: Apache-2.0
"""System calls of a window by thread, and what they read and wrote."""
