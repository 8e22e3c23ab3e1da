# SPDX-License-Identifier: Apache-2.0
"""Database servers that are queried without being named: those that no other account started.

Any account may run a program called mariadbd and choose its answers: its findings would be alerts by that account. A
server is queried if its process, program and sockets belong to root, to us, or to the account of the server's package.
"""

from __future__ import annotations

import stat
from dataclasses import replace

from powerprof.database.products.local import listening_sockets
from powerprof.processes.accounts import ProcessOwner, account_name, is_servers_account, owner_of
from powerprof.processes.reader_process import shared


def owner_of_server(pid: int) -> ProcessOwner:
    """Return the account and program of a server, and the reason not to query it unless it is named, if any."""
    owner = owner_of(pid)
    for place in listening_sockets(pid) if owner.distrust is None else ():
        info = shared().status(place, follow=False)
        if info is not None and not (stat.S_ISSOCK(info.mode) and is_servers_account(pid, info.uid)):
            return replace(owner, distrust=f"its socket belongs to {account_name(info.uid)}")
    return owner
