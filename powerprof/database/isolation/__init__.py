# SPDX-License-Identifier: Apache-2.0
"""The account, folder, network, disk and janitor of a private server."""
