# SPDX-License-Identifier: Apache-2.0
"""What every database server is to the rest of powerprof, private or given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from powerprof.statements.text import Family
from powerprof.system.caller import HostUser
from powerprof.system.errors import Retryable


class StatementError(Retryable):
    """The server refused a statement; `number` is its error code."""

    def __init__(self, message: str, hint: str | None, number: int) -> None:
        super().__init__(message, hint)
        self.number = number


class Sql(Protocol):
    """A connection to any server: as much of Python's database interface as `sql` uses, and its socket.

    `family` is the dialect that is spoken on it.
    """

    family: Family

    def cursor(self) -> Any:
        """What runs statements."""

    def close(self) -> None:
        """Say good-bye."""

    def fileno(self) -> int:
        """The socket's descriptor."""

    def detach(self) -> int | None:
        """A descriptor by which the connection lives on without this object; None where it cannot."""

    def __enter__(self) -> Self:
        """Itself."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Close it."""


class Server(Protocol):
    """A running server. `pid` is None where it runs on another host or cannot be found."""

    @property
    def private(self) -> bool:
        """True where powerprof started it and may change anything in it."""

    @property
    def pid(self) -> int | None:
        """Its process on this host."""

    @property
    def version(self) -> str:
        """As people write it: `MariaDB 10.11.19`."""

    @property
    def login(self) -> Login:
        """Where and as whom clients connect."""

    @property
    def namespaces(self) -> tuple[int, ...]:
        """The open namespaces of its network; empty for the host's network and for a server with sockets alone."""

    def connect(self, **options: Any) -> Sql:
        """A control connection, closed by the caller. Raises PowerprofError."""

    def thread_names(self) -> dict[int, str]:
        """Kernel thread id → performance_schema name; empty where the server does not tell."""

    def check(self) -> None:
        """Raises PowerprofError where the server has ended."""


@dataclass(frozen=True)
class Limits:
    """What a server may cost: seconds of waiting for one answer and in all, and the size of an answer."""

    answer_s: float = 8.0
    waiting_s: float = 1e9
    rows: int = 200_000
    answer_bytes: int = 16 << 20


class Login:
    """Where and as whom to connect. The password never shows in a repr, a record or a command line.

    `account` is the user of this host who connects, with no more than that user's rights; None: whoever we are.
    `pid` is the process that must listen at the socket, or a process of the account at the port; None: any.
    `session_options` are PostgreSQL's start-up options; None: those that keep the settings of other accounts out.
    `options` is the option file that had the password.
    """

    __slots__ = (
        *("account", "database", "family", "host", "options", "password", "pid", "port", "session_options"),
        *("socket", "tls", "user"),
    )

    def __init__(
        self,
        *,
        user: str,
        password: str = "",
        socket: Path | None = None,
        host: str | None = None,
        port: int | None = None,
        database: str | None = None,
        tls: Mapping[str, str] | None = None,
        family: Family = "mysql",
        account: HostUser | None = None,
        pid: int | None = None,
        session_options: str | None = None,
        options: Path | None = None,
    ) -> None:
        self.user = user
        self.password = password
        self.socket = socket
        self.host = host
        self.port = port
        self.database = database
        self.tls = dict(tls or {})
        self.family = family
        self.account = account
        self.pid = pid
        self.session_options = session_options
        self.options = options

    def __repr__(self) -> str:
        return f"Login({self.text})"

    def within(self, database: str | None) -> Login:
        """The same account in a schema of its server."""
        return self._but(database=database or self.database)

    def of(self, user: str, password: str) -> Login:
        """Another account of the same server, in no schema."""
        return self._but(user=user, password=password, database=None, options=None)

    def at(self, pid: int) -> Login:
        """Return this login for one process: by its socket, or by the account at its port."""
        return self._but(pid=pid)

    def with_session_options(self, session_options: str) -> Login:
        """Return the same login with other start-up options of PostgreSQL."""
        return self._but(session_options=session_options)

    def _but(self, **changes: Any) -> Login:
        return Login(**({name: getattr(self, name) for name in self.__slots__} | changes))

    def fields(self) -> dict[str, Any]:
        """All of it, the password too, as plain data for a process of ours; `of_fields` is the way back."""
        plain = {name: getattr(self, name) for name in self.__slots__}
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
    def text(self) -> str:
        """The address as it may be shown and saved."""
        if self.socket is not None:
            return f"{self.user}@{self.socket}"
        host = self.host or "127.0.0.1"
        return f"{self.family}://{self.user}@{f'[{host}]' if ':' in host else host}:{self.port or 3306}/"
