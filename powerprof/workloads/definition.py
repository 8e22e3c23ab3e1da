# SPDX-License-Identifier: Apache-2.0
"""The structure of a workload.toml. The JSON Schema of docs/reference is generated from these structs."""

from __future__ import annotations

import inspect
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

SCHEMA = "powerprof.workload/1"

Name = Annotated[str, Meta(pattern="^[a-z0-9][a-z0-9-]{0,62}$", description="lower case letters, digits and -")]
Variable = Annotated[str, Meta(pattern="^[A-Za-z][A-Za-z0-9_.-]{0,63}$", description="a server variable")]
Identifier = Annotated[str, Meta(pattern="^[A-Za-z_][A-Za-z0-9_]{0,63}$", description="an SQL name")]
Value = bool | int | float | str
Statement = Annotated[str, Meta(min_length=1, max_length=1 << 20)]

ServerKind = Literal["mysql", "postgresql"]
DEFAULT_KIND: ServerKind = "mysql"
LoadKind = Literal["statements", "tpcc", "slap", "pgbench", "connector-j", "idle", "none", "command"]
# Kinds of load by kind of server.
LOADS: dict[ServerKind, tuple[LoadKind, ...]] = {
    "mysql": ("statements", "tpcc", "slap", "connector-j", "idle", "none", "command"),
    "postgresql": ("statements", "pgbench", "idle", "none", "command"),
}
# Kinds of dataset by kind of server, and the keys that belong to other servers only.
DATASETS: dict[ServerKind, tuple[str, ...]] = {"mysql": ("none", "world", "sql"), "postgresql": ("none", "sql")}
FOREIGN: dict[ServerKind, tuple[str, ...]] = {"mysql": ("postgresql_conf",), "postgresql": ("my_cnf", "set_global")}

PrimaryMetric = Literal[
    "c0_ms_per_query_server",
    "c0_ms_per_query",
    "c0_ms_per_query_net",
    "joules_per_query",
    "joules_per_query_net",
    "wakeups_per_query",
    "latency_p95_ms",
    "c0_percent",
    "wakeups_hz",
]


class StrictTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A table of a file written by people: an unknown key is an error."""


class TopologyMember(StrictTable, frozen=True, kw_only=True):
    """Settings of one server of a topology in addition to [server]. `server_id` can be another server's."""

    my_cnf: dict[Variable, Value] = {}
    environment: dict[str, str] = {}
    server_id: Annotated[int, Meta(ge=1, le=4_294_967_295)] | None = None
    connect_retry_s: Annotated[int, Meta(ge=1, le=3600)] | None = None


class Topology(StrictTable, frozen=True, kw_only=True):
    """The number of servers and their connections; the load runs on the first.

    Their names are primary, replica-1, …; node-1, node-2, …; or router, host-a, host-b. `routes` assigns tables of the
    dataset to the hosts.
    """

    kind: Literal["standalone", "primary-replica", "primary-primary", "ring", "routed-pair"] = "standalone"
    count: Annotated[int, Meta(ge=1, le=32)] | None = None
    members: dict[Name, TopologyMember] = {}
    routes: dict[Literal["host-a", "host-b"], list[Identifier]] = {}


class ServerDefinition(StrictTable, frozen=True, kw_only=True):
    """Settings of a server.

    `my_cnf` (PostgreSQL: `postgresql_conf`) and `environment` need a separate server. `set_global` is changed at run
    time and restored, also on a given server. `build` is a fetched server (`powerprof servers`). `disk_operations_hz`
    slows down each server's disk once its tables are made.
    """

    kind: ServerKind = DEFAULT_KIND
    build: Annotated[str, Meta(pattern="^[a-z0-9.-]{1,64}$")] | None = None
    postgresql_conf: dict[Variable, Value] = {}
    my_cnf: dict[Variable, Value] = {}
    set_global: dict[Variable, Value] = {}
    environment: dict[Annotated[str, Meta(pattern="^[A-Za-z_][A-Za-z0-9_]*$")], str] = {}
    disk_operations_hz: Annotated[int, Meta(ge=10, le=1_000_000)] | None = None

    @property
    def settings(self) -> dict[str, Value]:
        """The start-up settings; one of the two groups is empty."""
        return {**self.my_cnf, **self.postgresql_conf}


class Dataset(StrictTable, frozen=True, kw_only=True):
    """The tables. `world` is generated (or read from the official world.sql), `sql` is your own files."""

    kind: Literal["none", "world", "sql"] = "none"
    files: list[str] = []
    engine: Literal["InnoDB", "MyISAM", "Aria", "MEMORY"] = "InnoDB"
    huge_copies: Annotated[int, Meta(ge=0, le=1000)] = 5
    warehouses: Annotated[int, Meta(ge=1, le=1000)] = 1
    seed: int = 1


class Load(StrictTable, frozen=True, kw_only=True):
    """The work of the clients.

    `counted` is a statement whose value is the amount of work done so far, if that is not the number of statements.
    `checks` return no rows as long as the data are intact. `reads_only` uses, on a given server, a temporary account
    that may only SELECT in the load's schema.
    """

    kind: LoadKind = "statements"
    sql: list[Statement] = []
    files: list[str] = []
    session: list[Statement] = []
    database: Identifier | None = None
    clients: Annotated[int, Meta(ge=1, le=10_000)] = 4
    protocol: Literal["text", "prepare-once", "prepare-each"] = "text"
    reconnect: bool = False
    transaction: bool = False
    tcp: bool = False
    think: Annotated[float, Meta(ge=0, le=1)] = 0.0
    counted: Statement | None = None
    checks: list[Statement] = []
    rate_hz: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    maximum_rate_hz: Annotated[float, Meta(gt=0, le=1e6)] = 2000.0
    queries: Annotated[int, Meta(ge=1, le=1_000_000_000)] | None = None
    argv: list[str] = []
    connector: Literal["mysql-connector-j", "mariadb-connector-j"] = "mysql-connector-j"
    reads_only: bool = False

    @property
    def is_silent(self) -> bool:
        """Whether the load sends no queries."""
        return self.kind in ("idle", "none")


class PlanStep(StrictTable, frozen=True, kw_only=True):
    """One required row of EXPLAIN; a list contains all permitted values."""

    table: str
    type: list[str] = []
    select_type: list[str] = []
    key: str | None = None


class Explain(StrictTable, frozen=True, kw_only=True):
    """A statement whose plan is saved, and checked before the measurement."""

    statement: Statement
    plan: list[PlanStep] = []


class Condition(StrictTable, frozen=True, kw_only=True):
    """One of the compared conditions: changes in the servers, the load and the tables.

    `on_members` are statements that run once, after `setup`, on the named servers of a topology. `counters` is the
    change per query of these counters of the server; with another change the condition is invalid. `host` are settings
    of this host (SETTING=VALUE of `cure --host`), changed as root for each window; those that it lacks are noted.
    """

    title: str = ""
    topology: Topology = Topology()
    server: ServerDefinition = ServerDefinition()
    load: Load = Load()
    setup: list[Statement] = []
    enter: list[Statement] = []
    leave: list[Statement] = []
    on_members: dict[Name, list[Statement]] = {}
    explain: list[Explain] = []
    host: list[Annotated[str, Meta(pattern="^[a-z-]{1,32}=[A-Za-z0-9_ .|-]{1,64}$")]] = []
    counters: dict[Annotated[str, Meta(pattern="^[A-Z][A-Za-z_]{1,63}$")], Annotated[float, Meta(ge=0)]] = {}


class Parameter(StrictTable, frozen=True, kw_only=True):
    """A parameter of `sweep`: the dotted name of a key, and its default values."""

    key: Annotated[str, Meta(pattern=r"^(load|server|topology)\.[A-Za-z0-9_.]+$")]
    values: list[Value] = []


class Storm(StrictTable, frozen=True, kw_only=True):
    """A fault that can end on its own; `trigger`, statements by server, starts it again.

    It is active while `counter` of the first server's SHOW GLOBAL STATUS rises by `least_hz`.
    """

    counter: Annotated[str, Meta(pattern="^[A-Z][A-Za-z_]{1,63}$")] = "Connections"
    least_hz: Annotated[float, Meta(gt=0, le=1e6)] = 20.0
    trigger: Annotated[dict[Name, list[Statement]], Meta(min_length=1)]


class Workload(StrictTable, frozen=True, kw_only=True):
    """A workload.toml. `slices_s` is the interval of readings of written bytes and wake-ups within a window."""

    schema: Literal["powerprof.workload/1"]
    name: Name
    title: Annotated[str, Meta(min_length=1, max_length=200)]
    description: str = ""
    origin: str = ""
    primary_metric: PrimaryMetric = "c0_ms_per_query_server"
    topology: Topology = Topology()
    server: ServerDefinition = ServerDefinition()
    dataset: Dataset = Dataset()
    load: Load = Load()
    storm: Storm | None = None
    slices_s: Annotated[float, Meta(ge=0.05, le=10)] | None = None
    setup: list[Statement] = []
    explain: list[Explain] = []
    conditions: Annotated[dict[Name, Condition], Meta(min_length=1)]
    parameters: dict[Name, Parameter] = {}


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a workload.toml."""
    made: dict[str, Any] = normalise_schema(msgspec.json.schema(Workload))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": SCHEMA, **made}


def normalise_schema(schema: Any) -> Any:
    """Return a JSON Schema that is the same for all versions of Python and msgspec.

    Python 3.13 removes the common indentation from docstrings. msgspec 0.23 adds the names of literal keys.
    """
    if isinstance(schema, dict):
        return {
            key: inspect.cleandoc(value) if key == "description" and isinstance(value, str) else normalise_schema(value)
            for key, value in schema.items()
            if key != "propertyNames" or "enum" not in value
        }
    return [normalise_schema(part) for part in schema] if isinstance(schema, list | tuple) else schema
