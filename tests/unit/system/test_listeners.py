# SPDX-License-Identifier: Apache-2.0
"""The sockets and ports on which a process listens."""

from __future__ import annotations

import pytest

from powerprof.system.listeners import describe_listeners, list_tcp_ports, list_unix_sockets
from tests.conftest import Tree
from tests.unit.system.conftest import add_process

_TCP = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
_ROW = " {}: 00000000:{:04X} 0100007F:{:04X} {} 00000000:00000000 00:00000000 00000000   112        0 {} 1\n"
_UNIX = "Num       RefCount Protocol Flags    Type St Inode Path\n"


@pytest.fixture
def listening(fake_tree: Tree) -> int:
    """Return a process that listens on ports 3306, 3307 and 33060, and on two sockets. Another one has port 5432."""
    rows = [
        _ROW.format(0, 3307, 9999, "0A", 11),
        _ROW.format(1, 3308, 40001, "01", 12),
        _ROW.format(2, 5432, 0, "0A", 99),
        _ROW.format(3, 33060, 0, "0A", 13),
    ]
    sockets = [
        "0000000000000000: 00000002 00000000 00010000 0001 01 21 /run/mysqld/mysqld.sock\n",
        "0000000000000000: 00000002 00000000 00010000 0001 01 22 /run/with blank.sock\n",
        "0000000000000000: 00000003 00000000 00000000 0001 03 23 /run/connected.sock\n",
        "0000000000000000: 00000002 00000000 00010000 0001 01 98 /run/another.sock\n",
        "0000000000000000: 00000002 00000000 00010000 0001 01 24 @abstract\n",
        "0000000000000000: 00000002 00000000 00010000 0001 01 25\n",
    ]
    files = {"net/tcp": _TCP + "".join(rows), "net/tcp6": _TCP + _ROW.format(0, 3306, 0, "0A", 14)}
    folder = add_process(fake_tree, 7, "/usr/sbin/mysqld", files={**files, "net/unix": _UNIX + "".join(sockets)})
    (folder / "fd").mkdir()
    for number, inode in enumerate((11, 12, 13, 14, 21, 22, 23, 24, 25)):
        (folder / "fd" / str(number)).symlink_to(f"socket:[{inode}]")
    (folder / "fd/90").symlink_to("/var/log/99")
    return 7


def test_ports_and_sockets_are_those_on_which_a_process_listens(listening: int) -> None:
    assert list_tcp_ports(listening) == [3306, 3307, 33060]
    assert list_unix_sockets(listening) == ["/run/mysqld/mysqld.sock", "/run/with blank.sock"]
    text = "port 3306, port 3307, port 33060, /run/mysqld/mysqld.sock, /run/with blank.sock"
    assert describe_listeners(listening) == text


def test_a_process_that_cannot_be_read_has_no_listener(listening: int) -> None:
    assert list_tcp_ports(8) == list_unix_sockets(8) == []
    assert describe_listeners(8) == ""
