# SPDX-License-Identifier: Apache-2.0
"""The long tests run what the integration tests run, more often."""

from tests.system.idle.conftest import idle, own_room, warm_cache

__all__ = ["idle", "own_room", "warm_cache"]
