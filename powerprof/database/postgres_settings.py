# SPDX-License-Identifier: Apache-2.0
"""Settings of a PostgreSQL server: values, texts in its files, and roles and databases with other values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from powerprof.database import sql
from powerprof.database.base import Login, StatementError
from powerprof.database.pg_stat_statements import has_login_triggers
from powerprof.database.postgres_wire import NO_LOGIN_TRIGGERS, SAFE_OPTIONS
from powerprof.system.errors import PowerprofError
from powerprof.system.foreign_text import printable

if TYPE_CHECKING:
    from powerprof.database.base import Sql


AUTO_FILE = "postgresql.auto.conf"
_MAX_NAME = 64
_INSUFFICIENT_PRIVILEGE = "[42501]"
_RIGHTS = "log in as a superuser; docs/how-to/cure.md lists the rights of another role"
# All names and operators are qualified. Otherwise the session's search_path could choose other objects.
_SETTING = (
    "SELECT s.name, pg_catalog.current_setting(s.name, true), s.context, s.source FROM pg_catalog.pg_settings s"
    " WHERE pg_catalog.lower(s.name) OPERATOR(pg_catalog.=) '{name}'"
)
_NAMES = "SELECT s.name FROM pg_catalog.pg_settings s"
_FILES = "SELECT f.applied, f.error, f.sourcefile FROM pg_catalog.pg_file_settings f ORDER BY f.seqno"
_TEXTS = (
    "SELECT f.setting FROM pg_catalog.pg_file_settings f"
    " WHERE pg_catalog.lower(f.name) OPERATOR(pg_catalog.=) '{name}' AND f.sourcefile OPERATOR(pg_catalog.=)"
    " pg_catalog.concat(pg_catalog.current_setting('data_directory'), '/postgresql.auto.conf') ORDER BY f.seqno"
)
_UNLOADED = (
    "SELECT p.place FROM (SELECT f.sourcefile AS place FROM pg_catalog.pg_file_settings f"
    " UNION SELECT pg_catalog.current_setting('config_file') UNION SELECT pg_catalog.current_setting('hba_file')"
    " UNION SELECT pg_catalog.current_setting('ident_file')) AS p"
    " WHERE (pg_catalog.pg_stat_file(p.place, true)).modification"
    " OPERATOR(pg_catalog.>) pg_catalog.pg_conf_load_time() LIMIT 1"
)
_HIDING = (
    "SELECT r.rolname, d.datname, e.e FROM pg_catalog.pg_db_role_setting s"
    " CROSS JOIN pg_catalog.unnest(s.setconfig) AS e"
    " LEFT JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) s.setrole"
    " LEFT JOIN pg_catalog.pg_database d ON d.oid OPERATOR(pg_catalog.=) s.setdatabase"
    " WHERE pg_catalog.lower(pg_catalog.split_part(e.e, '=', 1)) OPERATOR(pg_catalog.=) '{name}'"
    " ORDER BY 1, 2 LIMIT 100"
)


class ServerSetting(msgspec.Struct, frozen=True):
    """A setting as this session sees it. `context` says who can change it and when, `source` where it is from."""

    name: str
    value: str
    context: str
    source: str


def without_limits(connection: Sql, login: Login) -> Login:
    """Return a login whose sessions run no triggers, and no time limit of the database. Raise StatementError."""
    options = NO_LOGIN_TRIGGERS if has_login_triggers(connection) else SAFE_OPTIONS
    return login.with_session_options(f"{options} -c statement_timeout=0")


def read_setting(connection: Sql, name: str) -> ServerSetting | None:
    """Return the setting of a valid name, in any case; None if the server has none. Raise StatementError."""
    rows = sql.fetch_rows(connection, _SETTING.format(name=name.lower()), columns=4)
    return ServerSetting(*(str(cell) for cell in rows[0])) if rows else None


def list_setting_names(connection: Sql) -> list[str]:
    """Return the names of all settings. Raise StatementError."""
    return [str(name) for (name,) in sql.fetch_rows(connection, _NAMES, columns=1)]


def read_file_text(connection: Sql, name: str) -> str | None:
    """Return the text of a setting in postgresql.auto.conf; None if the file lacks it.

    Raise PowerprofError if the account may not read the files, or if the server cannot load them.
    """
    rows = _fetch_as_administrator(connection, _FILES, 3)
    errors = [(place, error) for _, error, place in rows if error]
    # With an error in any file the server loads none of them. Settings that wait for a restart are errors as well.
    if errors and not any(applied == "t" for applied, *_ in rows):
        place, error = (printable(str(word))[:200] for word in errors[0])
        raise PowerprofError(f"the server cannot load its configuration ({place}: {error})", "repair this file first")
    texts = [str(text) for (text,) in sql.fetch_rows(connection, _TEXTS.format(name=name.lower()), columns=1)]
    if texts and "\ufffd" in texts[-1]:
        raise PowerprofError(f"the text of {name} in {AUTO_FILE} is not UTF-8", "set it again")
    return texts[-1] if texts else None


def find_unloaded_file(connection: Sql) -> str | None:
    """Return a configuration file that changed after the server loaded it; None without one. Raise PowerprofError."""
    rows = _fetch_as_administrator(connection, _UNLOADED, 1)
    return printable(str(rows[0][0])) if rows else None


def list_hiding(connection: Sql, name: str) -> list[str]:
    """Return the roles and databases with their own value of a setting, which hides the server's. Raise StatementError.

    An item is such as `role app in database shop: 16MB`.
    """
    items = []
    for role, database, entry in sql.fetch_rows(connection, _HIDING.format(name=name.lower()), columns=3):
        owners = [("role", role), ("database", database)]
        words = " in ".join(f"{kind} {printable(str(owner))[:_MAX_NAME]}" for kind, owner in owners if owner)
        items.append(f"{words or 'all roles'}: {printable(str(entry).partition('=')[2])[:_MAX_NAME]}")
    return items


def _fetch_as_administrator(connection: Sql, statement: str, columns: int) -> Sequence[sql.Row]:
    try:
        return sql.fetch_rows(connection, statement, columns=columns)
    except StatementError as error:
        if _INSUFFICIENT_PRIVILEGE in error.message:
            raise StatementError(
                f"this account may not read the server's files ({error.message})", _RIGHTS, 1
            ) from error
        raise
