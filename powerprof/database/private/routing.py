# SPDX-License-Identifier: Apache-2.0
"""A router before two servers: MariaDB's Spider engine, whose tables are those of other servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from powerprof.database.clients import sql
from powerprof.errors import CapabilityError, PowerprofError

if TYPE_CHECKING:
    from powerprof.database.clients.base import Sql
    from powerprof.database.private.server import PrivateServer

_PACKAGE = "apt install mariadb-plugin-spider"


def join(router: PrivateServer, hosts: Mapping[str, PrivateServer]) -> None:
    """Make the router know the hosts by their names. Raises CapabilityError where it has no Spider."""
    if router.build.family != "mariadb":
        raise CapabilityError("a routed pair needs MariaDB: Spider is its storage engine", "leave out --server-build")
    with router.connect() as connection:
        try:
            # Its own statements make the tables in which it keeps what it knows.
            sql.execute(connection, "INSTALL SONAME 'ha_spider'")
        except PowerprofError as error:
            raise CapabilityError(f"the router has no Spider engine ({error.message})", _PACKAGE) from error
        for name, server in hosts.items():
            login = server.login
            sql.execute(
                connection,
                f"CREATE SERVER `{name}` FOREIGN DATA WRAPPER mysql OPTIONS (HOST '{server.options.address}', "
                f"PORT {server.port}, USER '{login.user}', PASSWORD '{login.password}')",
            )


def route(connection: Sql, schema: str, tables: Mapping[str, Sequence[str]]) -> None:
    """Make each table a Spider table of the host that has it; their columns are asked of the host."""
    for host, names in tables.items():
        for name in names:
            sql.execute(
                connection,
                f'CREATE TABLE `{name}` ENGINE=SPIDER COMMENT=\'wrapper "mysql", srv "{host}", '
                f'database "{schema}", table "{name}"\'',
            )
