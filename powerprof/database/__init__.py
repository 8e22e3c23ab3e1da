# SPDX-License-Identifier: Apache-2.0
"""Database servers: private ones, given ones, connections, topologies and fetched releases."""
