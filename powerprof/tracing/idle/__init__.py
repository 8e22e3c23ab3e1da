# SPDX-License-Identifier: Apache-2.0
"""Every idle exit, what ended it, and the stacks of who slept."""
