# SPDX-License-Identifier: Apache-2.0
"""The names of database servers: the one rule that decides whether a program is a server.

The rule is on the lowest floor because `system.targets` chooses processes by it. The rooms above (database, diagnosis,
queries, cure, live) have to recognise the same processes, and may import this room.

The rule judges the file name of a program (`processes.name_of`). It does not judge the comm: a process can change its
comm, and the kernel cuts it to 15 bytes. Names say nothing about trust (`processes.owner_of`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

# mysqldump, mysqld_safe, mysqld_multi, mariadbd-safe, mariadbd-safe-helper and mysqld_exporter are not servers.
_MYSQL_PROGRAM = re.compile(r"(mysqld|mariadbd)(-(?!safe).*)?")
_POSTGRES_PROGRAMS = ("postgres", "postmaster")
# Shell scripts that start a server and wait for its end.
_STARTERS = ("mysqld_safe", "mariadbd-safe")
# Distributions renamed the program. Users type either name, or the name of the product.
_MEANINGS = {
    "mysqld": ("mysqld", "mariadbd"),
    "mariadbd": ("mariadbd", "mysqld"),
    "mariadb": ("mariadbd", "mysqld"),
    "mysql": ("mysqld", "mariadbd"),
    "postgresql": ("postgres",),
    "postmaster": ("postgres",),
}


def is_mysql_program(program: str | None) -> bool:
    """Return whether a file name of a program is one of a MariaDB or MySQL server."""
    return _MYSQL_PROGRAM.fullmatch(program or "") is not None


def is_postgres_program(program: str | None) -> bool:
    """Return whether a file name of a program is one of a PostgreSQL server."""
    return program in _POSTGRES_PROGRAMS


def is_server_program(program: str | None) -> bool:
    """Return whether a file name of a program is one of a database server."""
    return is_mysql_program(program) or is_postgres_program(program)


def is_starter(program: str | None) -> bool:
    """Return whether a program is a script that starts a server and waits for its end."""
    return program in _STARTERS


def list_meant_programs(word: str) -> Sequence[str]:
    """Return the file names of programs that a typed name means, the most likely one first."""
    return _MEANINGS.get(word, (word,))


def guess_product(program: str) -> str:
    """Return the product of a server program, as far as its file name shows it. MariaDB may be called mysqld too."""
    if is_postgres_program(program):
        return "PostgreSQL"
    return "MariaDB" if program.startswith("mariadbd") else "MySQL or MariaDB"
