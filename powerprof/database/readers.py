# SPDX-License-Identifier: Apache-2.0
"""Accounts that may only read, for statements of clients; created for this purpose and dropped afterwards.

A client's statement may call functions, also through views. They run with the rights of the account that executes or
explains the statement, and a read-only transaction does not prevent SET GLOBAL. Such a statement therefore runs only
under an account whose only right is SELECT in the statement's own schema. It cannot execute stored functions, and a
statement of one schema reveals nothing of another schema, which its sender may not read.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from powerprof.database import sql
from powerprof.database.base import Limits, Login, StatementError
from powerprof.database.given import build_login
from powerprof.database.option_files import read_password
from powerprof.database.postgres_plans import only_reads
from powerprof.database.sql import read_version
from powerprof.system import paths, signals
from powerprof.system.closeable import Closeable
from powerprof.system.errors import PowerprofError, reason_of
from powerprof.system.folders import Folder, write_all

if TYPE_CHECKING:
    from powerprof.database.base import Sql


_SUFFIX = ".account"
_UNREACHABLE = (2002, 2003)
_HOST_NAME = re.compile(r"[A-Za-z0-9_.:%-]{1,255}")
# The name has sixteen characters, the maximum of MySQL 5.6.
_ACCOUNT = re.compile(rf"'pp_read_[0-9a-f]{{8}}'@'{_HOST_NAME.pattern}'")
_READS = re.compile(r"GRANT (USAGE|SELECT|SHOW VIEW|SELECT, SHOW VIEW) ON ", re.IGNORECASE)
_LIMITS = Limits(answer_s=5.0, rows=10_000, answer_bytes=4 << 20)
_SYSTEM_SCHEMAS = ("mysql", "sys", "performance_schema", "information_schema")
_PASSWORD_POLICY = 1372  # strict_password_validation refuses a hash instead of a password.
_REASONS = {
    1044: "it cannot grant rights on that schema",
    1045: "it cannot create accounts",
    1142: "it cannot create accounts",
    1227: "it cannot create accounts, or not keep them out of the binary log",
    1290: "the server is read only, or has no accounts",
    1819: "the server's password policy refuses it",
    1836: "the server is read only",
}
_READ_ONLY_HINT = "name an account that has only SELECT with --explain-as FILE"


class ReadOnlyAccount(Closeable):
    """An account that may SELECT in one schema, and nothing else.

    Use it as `with ReadOnlyAccount(login, schema) as reader:` and log in with `reader.login`.

    Without a schema, and in the server's system schemas, it may SELECT nothing. The account is `login` if that has no
    further rights. Otherwise `login` creates one, with a random name and password, for connections from the same host
    and outside of the binary log. It is dropped at the end. Its maker holds a lock with its name: an account with a
    free lock was left by a killed powerprof, and the next one drops it. Raises PowerprofError if no such account is
    available.
    """

    def __init__(self, login: Login, schema: str | None) -> None:
        self.login = login
        self._maker = login
        self._schema = None if (schema or "").lower() in _SYSTEM_SCHEMAS else schema
        self._control: Sql | None = None
        self._made: str | None = None
        self._note: _AccountNote | None = None

    def _open(self) -> None:
        if self._maker.family != "mysql":
            raise PowerprofError("an account that only reads is made for MariaDB and MySQL alone", None)
        self._control = sql.connect(self._maker, limits=_LIMITS)
        if may_only_read(self._control):
            return
        try:
            self.login = self._make(self._control)
        except StatementError as error:
            # The server's message is left out: it may quote the password.
            reason = _REASONS.get(error.number, f"error {error.number}")
            message = f"{self._maker.text} cannot make an account that only reads ({reason})"
            raise PowerprofError(message, _READ_ONLY_HINT) from None
        with sql.connect(self.login, limits=_LIMITS) as connection:
            if not may_only_read(connection):
                raise PowerprofError("the server gives a new account more rights than SELECT", _READ_ONLY_HINT)

    def _make(self, control: Sql) -> Login:
        # The account stays out of replicas and backups of the log.
        sql.execute(control, "SET SESSION sql_log_bin = 0", "SET SESSION wait_timeout = 2147483")
        _drop_unlocked_accounts(control)
        name, password = f"pp_read_{secrets.token_hex(4)}", f"aA1-{secrets.token_urlsafe(24)}"
        host = str(sql.fetch_scalar(control, "SELECT SUBSTRING_INDEX(USER(), '@', -1)"))
        account = f"'{name}'@'{host if _HOST_NAME.fullmatch(host) else '%'}'"
        if sql.parse_count(sql.fetch_scalar(control, f"SELECT GET_LOCK('powerprof.{name}', 0)")) != 1:
            raise PowerprofError("the server gives no lock for an account's name", _READ_ONLY_HINT)
        with signals.uninterrupted():
            self._note = _AccountNote(self._maker, account)
            _create_account(control, account, password)
            self._made = account
        if self._schema:
            sql.execute(control, f"GRANT SELECT ON {_quote_schema(self._schema)}.* TO {account}")
        return self._maker.with_account(name, password)

    def close(self) -> None:
        """Drop the account if it was created. Raise PowerprofError if that fails."""
        made, self._made = self._made, None
        note, self._note = self._note, None
        control, self._control = self._control, None
        try:
            with signals.uninterrupted():
                if made is not None:
                    self._drop(control, made)
                if note is not None:
                    note.remove()
        finally:
            if note is not None:
                os.close(note.handle)
            if control is not None:
                control.close()

    def _drop(self, control: Sql | None, account: str) -> None:
        if control is not None:
            with suppress(StatementError):
                sql.execute(control, f"DROP USER {account}")
                return
        try:
            with sql.connect(self._maker, limits=_LIMITS) as connection:
                sql.execute(connection, "SET SESSION sql_log_bin = 0", f"DROP USER {account}")
        except PowerprofError as error:
            raise PowerprofError(
                f"the account {account}, which only reads, is left ({error.message})", f"DROP USER {account}"
            ) from error


def may_only_read(connection: Sql) -> bool:
    """Return whether the account of a connection has only SELECT and SHOW VIEW, without roles or grant option.

    On PostgreSQL it must own no table of its database, and its roles must only read. Rights of PUBLIC are not counted.
    """
    if connection.family == "postgresql":
        return only_reads(connection)
    grants = [str(row[0]) for row in sql.fetch_rows(connection, "SHOW GRANTS", columns=1)]
    return bool(grants) and all(_READS.match(grant) and "WITH GRANT OPTION" not in grant for grant in grants)


def _create_account(control: Sql, account: str, password: str) -> None:
    if read_version(control).startswith("MariaDB"):
        # MariaDB's general log contains statements as sent, unlike MySQL's. The hash of a random password is useless
        # to a reader of the log.
        once = hashlib.sha1(password.encode(), usedforsecurity=False).digest()
        twice = hashlib.sha1(once, usedforsecurity=False).hexdigest().upper()
        try:
            sql.execute(control, f"CREATE USER {account} IDENTIFIED BY PASSWORD '*{twice}'")
            return
        except StatementError as error:
            if error.number != _PASSWORD_POLICY:
                raise
    sql.execute(control, f"CREATE USER {account} IDENTIFIED BY '{password}'")


def _quote_schema(schema: str) -> str:
    """Return a schema's name for GRANT, in which `_` and `%` are wildcards."""
    return "`" + re.sub(r"([_%\\])", r"\\\1", schema).replace("`", "``") + "`"


def _drop_unlocked_accounts(control: Sql) -> None:
    """Drop the accounts of killed processes. Ignore accounts that cannot be dropped."""
    left = sql.fetch_rows(
        control,
        # This table cannot be replaced, unlike mysql.user, which may be a view.
        "SELECT DISTINCT GRANTEE FROM information_schema.USER_PRIVILEGES WHERE GRANTEE LIKE '_pp\\_read\\_%'"
        " AND IS_FREE_LOCK(CONCAT('powerprof.', SUBSTRING(GRANTEE, 2, 16))) = 1",
        columns=1,
    )
    for (account,) in left:
        if _ACCOUNT.fullmatch(str(account)):
            with suppress(StatementError):
                sql.execute(control, f"DROP USER {account}")


class _AccountNote:
    """A file with the name of an account, for the next start of powerprof. It is written before the account is created.

    The file is locked while `handle` is open, which is until this process ends. Raises PowerprofError if it cannot be
    written; no account is created then.
    """

    def __init__(self, maker: Login, account: str) -> None:
        # The account is in a table and therefore outlasts the server's process.
        self._place = paths.changed_dir(outlasts=True)
        self._name = f"{os.getpid()}-{secrets.token_hex(6)}{_SUFFIX}"
        login = {**maker.to_fields(), "password": "", "pid": None}
        try:
            with paths.open_changed(self._place, make=True) as folder:
                self.handle = folder.create(self._name)
                fcntl.flock(self.handle, fcntl.LOCK_EX)
                write_all(self.handle, json.dumps({"login": login, "account": account}).encode())
                os.fsync(self.handle)
        except OSError as error:
            self.remove()
            raise PowerprofError(
                f"cannot write down an account in {self._place} ({reason_of(error)}), so none is made",
                "make room there, or give it back its owner and mode 0700",
            ) from error

    def remove(self) -> None:
        """Remove the file after the account was dropped."""
        with suppress(OSError), paths.open_changed(self._place) as folder:
            folder.remove(self._name)


def drop_left_accounts() -> list[str]:
    """Drop the accounts of killed processes on their servers. Return messages.

    Errors become messages: a command must not fail because another one was killed.
    """
    messages: list[str] = []
    place = paths.changed_dir(outlasts=True)
    # The start-up check of changed settings reports an unreadable folder.
    with suppress(OSError), paths.open_changed(place) as folder:
        for name in folder.names():
            if name.endswith(_SUFFIX):
                messages += _drop_noted_account(folder, name, place / name)
    return messages


def _drop_noted_account(folder: Folder, name: str, file: Path) -> list[str]:
    """Drop the account of one note if no running powerprof uses it. Return messages."""
    try:
        handle = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder.handle)
    except OSError:
        return []
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        note = json.loads(os.pread(handle, 1 << 16, 0) or "null")
        if note is None:  # The writer was killed before it created the account.
            folder.remove(name)
            return []
        login, account = Login.from_fields(note["login"]), str(note["account"])
    except BlockingIOError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        return [f"{file} cannot be read ({error}): remove it"]
    finally:
        os.close(handle)
    try:
        if login.options is not None:
            login.password = read_password(login.options, login.account)
        with sql.connect(login, limits=_LIMITS) as control:
            sql.execute(control, "SET SESSION sql_log_bin = 0")
            was_present = _account_exists(control, account)
            _drop_unlocked_accounts(control)
            if _account_exists(control, account):
                return []  # The server has not closed the connection of the killed process yet.
        folder.remove(name)
    except PowerprofError as error:
        if isinstance(error, StatementError) and error.number in _UNREACHABLE:
            return []  # The server is down or removed. A later start tries again.
        return [
            f"the account {account}, which a powerprof that was killed made, may still be on {login.text} and cannot "
            f"be dropped ({error.message}): DROP USER {account}; then remove {file}"
        ]
    return [f"the account {account} on {login.text} is dropped: a powerprof that was killed left it"] * was_present


def _account_exists(control: Sql, account: str) -> bool:
    rows = sql.fetch_rows(control, "SELECT 1 FROM information_schema.USER_PRIVILEGES WHERE GRANTEE = %s", (account,))
    return bool(rows)


def read_only_login(server: Login, file: Path) -> Login:
    """Return the user's own read-only account from an option file. Raise PowerprofError if it may do more than read."""
    given = build_login(socket=Path("/"), defaults_file=file)
    account = server.with_account(given.user, given.password)
    account.account = given.account
    with sql.connect(account, limits=_LIMITS) as connection:
        check_only_reads(connection, account)
    return account


def check_only_reads(connection: Sql, account: Login) -> None:
    """Raise PowerprofError if an account may do more than read."""
    if not may_only_read(connection):
        raise PowerprofError(
            f"{account.text} may do more than SELECT",
            "REVOKE the rest, or name an account that has only SELECT with --explain-as FILE",
        )
