# SPDX-License-Identifier: Apache-2.0
"""The long tests run what the integration tests run, more often."""

from tests.system.conftest import asks_every_server, exclusive_statements, server_folder
from tests.system.idle.conftest import idle, own_room, warm_cache

__all__ = ["asks_every_server", "exclusive_statements", "idle", "own_room", "server_folder", "warm_cache"]
