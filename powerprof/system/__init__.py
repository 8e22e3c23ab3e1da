# SPDX-License-Identifier: Apache-2.0
"""The operating system: accounts, processes, files, signals and other programs."""
