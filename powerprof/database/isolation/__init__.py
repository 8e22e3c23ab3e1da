# SPDX-License-Identifier: Apache-2.0
"""What a private server lives in: its account, folder, network, disk and the process that cleans up."""
