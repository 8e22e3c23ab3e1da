# SPDX-License-Identifier: Apache-2.0
"""Functions of the kernel and of files: which a pattern means, where they are left, whether they can throw."""
