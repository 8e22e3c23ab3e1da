# SPDX-License-Identifier: Apache-2.0
"""The interfaces of database servers and connections, private or given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import msgspec
from msgspec.structs import asdict

from powerprof.model.identities import Family
from powerprof.model.statements import NormalText
from powerprof.system.caller import HostUser
from powerprof.system.errors import Retryable

DEFAULT_PORTS: Mapping[Family, int] = {"mysql": 3306, "postgresql": 5432}


class StatementError(Retryable):
    """The error of a refused statement; `number` is the server's error code, 0 without one."""

    def __init__(self, message: str, hint: str | None, number: int) -> None:
        super().__init__(message, hint)
        self.number = number

    @property
    def is_of_server(self) -> bool:
        """Return whether the server itself refused. Clients have the numbers 2000 to 2999."""
        return self.number > 0 and not 2000 <= self.number < 3000


class Sql(Protocol):
    """A connection to any server: the part of Python's database interface that `sql` uses, and the socket.

    `family` is the dialect of the connection.
    """

    family: Family

    def cursor(self) -> Any:
        """Return a cursor for statements."""

    def close(self) -> None:
        """Close the connection in order."""

    def fileno(self) -> int:
        """Return the descriptor of the socket."""

    def detach(self) -> int | None:
        """Return a descriptor that keeps the connection open without this object; None if that is impossible."""

    def __enter__(self) -> Self:
        """Return the connection."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Close the connection."""


class Server(Protocol):
    """A running server. `pid` is None if it runs on another host or cannot be found."""

    @property
    def private(self) -> bool:
        """Return whether powerprof started it and may change everything in it."""

    @property
    def pid(self) -> int | None:
        """Return its process id on this host."""

    @property
    def version(self) -> str:
        """Return product and version, such as `MariaDB 10.11.19`."""

    @property
    def login(self) -> Login:
        """Return the address and account for clients."""

    @property
    def namespaces(self) -> tuple[int, ...]:
        """Return the open namespaces of its network; empty for the host's network and for unix sockets alone."""

    def connect(self, **options: Any) -> Sql:
        """Return a control connection that the caller closes. Raise PowerprofError."""

    def list_processes(self) -> Sequence[int]:
        """Return its present processes on this host, the first one of PostgreSQL's first; empty without `pid`."""

    def thread_names(self) -> dict[int, str]:
        """Return performance_schema names by kernel thread id, or roles of PostgreSQL's processes; empty if unknown."""

    def check(self) -> None:
        """Raise PowerprofError if the server has ended."""


class ReplicationStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One replication channel as the replica reports it. Unknown is None.

    An error of the SQL thread quotes statements and is kept without their values. An error of the I/O thread quotes
    none.
    """

    channel: str
    source_host: str | None
    source_port: int | None
    source_server_id: int | None
    io_running: str | None
    io_state: str | None
    sql_running: bool | None
    seconds_behind: int | None
    last_io_error_number: int | None
    last_io_error: str | None
    last_sql_error_number: int | None
    last_sql_error: NormalText | None
    relay_log_bytes: int | None
    read_position_bytes: int | None
    executed_position_bytes: int | None
    source_log_file: str | None
    executed_log_file: str | None = None
    connect_retry_s: int | None
    ignored_server_ids: tuple[int, ...]


class ExplainedStep(msgspec.Struct, frozen=True):
    """A row of EXPLAIN with the columns that all servers have."""

    table: str | None
    access: str | None
    key: str | None
    rows: int | None
    extra: str | None


class Limits(msgspec.Struct, frozen=True):
    """Bounds of a connection: seconds for one answer and in total, and rows and bytes of an answer."""

    answer_s: float = 8.0
    waiting_s: float = 1e9
    rows: int = 200_000
    answer_bytes: int = 16 << 20


class Login(msgspec.Struct, kw_only=True, eq=False):
    """Address and account of a server. The password is in no repr, record or command line.

    Attributes:
        tls: PyMySQL's TLS options without their prefix `ssl_`.
        account: User of this host who connects, with at most that user's rights; None for powerprof's own account.
        pid: Process that must listen at the socket, or a process of the account at the port; None accepts any.
        session_options: PostgreSQL's start-up options; None for those that exclude settings of other accounts.
        options: Option file that contained the password.
    """

    user: str
    password: str = ""
    socket: Path | None = None
    host: str | None = None
    port: int | None = None
    database: str | None = None
    tls: Mapping[str, str] = msgspec.field(default_factory=dict)
    family: Family = "mysql"
    account: HostUser | None = None
    pid: int | None = None
    session_options: str | None = None
    options: Path | None = None

    def __repr__(self) -> str:
        return f"Login({self.text})"

    def in_database(self, database: str | None) -> Login:
        """Return this login in another schema of the server; None keeps the schema."""
        return msgspec.structs.replace(self, database=database or self.database)

    def with_account(self, user: str, password: str) -> Login:
        """Return a login of another account of the same server, without a schema."""
        return msgspec.structs.replace(self, user=user, password=password, database=None, options=None)

    def for_process(self, pid: int) -> Login:
        """Return this login for one process: by its socket, or by the account at its port."""
        return msgspec.structs.replace(self, pid=pid)

    def with_session_options(self, session_options: str) -> Login:
        """Return this login with other start-up options of PostgreSQL."""
        return msgspec.structs.replace(self, session_options=session_options)

    def to_fields(self) -> dict[str, Any]:
        """Return all fields, the password included, as plain data for a process of powerprof."""
        plain = {name: getattr(self, name) for name in self.__struct_fields__}
        account = self.account and {**asdict(self.account), "home": str(self.account.home)}
        paths = {name: path and str(path) for name, path in (("socket", self.socket), ("options", self.options))}
        return plain | paths | {"account": account}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Login:
        """Return the login that `fields` describes. Raise ValueError if they describe none."""
        try:
            socket, options, account = fields["socket"], fields.get("options"), fields["account"]
            return cls(
                **{
                    **fields,
                    "socket": Path(socket) if socket else None,
                    "options": Path(options) if options else None,
                    "account": HostUser(**{**account, "home": Path(account["home"])}) if account else None,
                }
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"these are not the fields of a login: {error}") from error

    @property
    def tcp_port(self) -> int:
        """The port, by default that of the product."""
        return self.port or DEFAULT_PORTS[self.family]

    @property
    def text(self) -> str:
        """The address without the password, for output and records."""
        if self.socket is not None:
            return f"{self.user}@{self.socket}"
        host = self.host or "127.0.0.1"
        return f"{self.family}://{self.user}@{f'[{host}]' if ':' in host else host}:{self.tcp_port}/"
