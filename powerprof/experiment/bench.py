"""The servers of an experiment: one for each set of start-up settings, and only one of them awake at a time."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from powerprof.database import sql
from powerprof.database.base import Login
from powerprof.errors import PowerprofError, UsageError
from powerprof.experiment import dataset, plans
from powerprof.experiment.knobs import GlobalSettings
from powerprof.experiment.loads import Context
from powerprof.workloads.definition import Explain
from powerprof.workloads.reading import Case

if TYPE_CHECKING:
    from powerprof.database.base import Server, Sql
    from powerprof.database.runtree import RunTree
    from powerprof.database.server import PrivateServer

_SPARE_CONNECTIONS = 8
_RETURN_S = 60.0


@dataclass(frozen=True)
class BenchOptions:
    """Where the servers run. `given` is used as it is; else private ones are started.

    `server_cpus` and `client_cpus` pin the two apart; `world_sql` is the official dataset to use.
    """

    given: Server | None = None
    server_cpus: tuple[int, ...] | None = None
    client_cpus: tuple[int, ...] | None = None
    world_sql: Path | None = None
    server_binary: Path | None = None
    server_basedir: Path | None = None


@dataclass
class _Node:
    """One server and what was changed in it."""

    server: Server
    settings: GlobalSettings
    asleep: bool = False
    generation: int = 1
    made: list[str] = field(default_factory=list)


class Bench:
    """`with Bench(cases, options) as bench:` has every server up, its tables filled and every plan asserted.

    Private servers that are not needed in a block are stopped by SIGSTOP, so that their own wake-ups are in
    no other condition's figures. Raises PowerprofError, CapabilityError, UsageError; PlanMismatch for
    another plan.
    """

    def __init__(self, cases: Sequence[Case], options: BenchOptions) -> None:
        self._cases = list(cases)
        self._options = options
        self._stack = ExitStack()
        self._nodes: dict[str, _Node] = {}
        self._tree: RunTree | None = None
        self.plans: dict[str, list[tuple[Explain, list[dict[str, object]]]]] = {}

    def __enter__(self) -> Bench:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    # Life cycle

    def _start(self) -> None:
        from powerprof.database.runtree import RunTree

        self._tree = self._stack.enter_context(RunTree())
        (self._tree.path / "load").mkdir(0o700)
        for case in self._cases:
            _check_supported(case, self._options)
            key = self._key(case)
            if key not in self._nodes:
                server = self._options.given or self._launch(case, f"server-{len(self._nodes) + 1}")
                settings = GlobalSettings(server.connect)
                self._stack.callback(self._close_node, key)
                self._nodes[key] = _Node(server, settings)
                self._fill(case, self._nodes[key])
        for case in self._cases:
            self.plans[case.qualified] = self._explain(case)

    def _launch(self, case: Case, name: str) -> PrivateServer:
        from powerprof.database.server import PrivateServer

        most = max(other.load.clients for other in self._cases)
        return self._stack.enter_context(
            PrivateServer(
                tree=self._private_tree(),
                name=name,
                settings=case.server.my_cnf,
                environment=case.server.environment,
                connections=most + _SPARE_CONNECTIONS,
                affinity=self._options.server_cpus,
                binary=self._options.server_binary,
                basedir=self._options.server_basedir,
            )
        )

    def _fill(self, case: Case, node: _Node) -> None:
        definition = case.workload.definition
        made: set[Path] = set()
        for other in self._cases:
            if self._key(other) != self._key(case):
                continue
            if other.workload.folder not in made:
                made.add(other.workload.folder)
                name = dataset.schema_of(other.workload)
                dataset.make(node.server, other.workload, definition.dataset, self._options.world_sql)
                if name and name not in node.made:
                    node.made.append(name)
                self._run(other, node, other.workload.definition.setup)
        done: set[str] = set()
        for other in self._cases:
            if self._key(other) == self._key(case) and other.qualified not in done:
                done.add(other.qualified)
                self._run(other, node, other.condition.setup)

    def _close_node(self, key: str) -> None:
        node = self._nodes.pop(key)
        if node.server.private:
            return
        try:
            node.settings.restore()
        finally:
            with node.server.connect() as connection:
                for name in node.made:
                    dataset.remove(connection, name)

    def _key(self, case: Case) -> str:
        """Conditions with the same start-up settings share a server."""
        if self._options.given is not None:
            return "given"
        return repr((sorted(case.server.my_cnf.items()), sorted(case.server.environment.items())))

    # One condition

    def enter(self, case: Case) -> None:
        """Make the condition hold: its server awake and the others asleep, its global settings, its statements."""
        for key, node in self._nodes.items():
            if key != self._key(case):
                self._sleep(node)
        node = self._node(case)
        self._wake(node)
        node.settings.apply(case.server.set_global)
        self._run(case, node, case.condition.enter)

    def leave(self, case: Case) -> None:
        """Run what the condition wants run after each of its blocks."""
        self._run(case, self._node(case), case.condition.leave)

    def revive(self, case: Case) -> bool:
        """After a failed block: True where the server answers, or was started anew with its tables.

        A given server is waited for; where it stays away this raises PowerprofError.
        """
        node = self._node(case)
        server = node.server
        deadline = time.monotonic() + (5.0 if server.private else _RETURN_S)
        while time.monotonic() < deadline:
            try:
                with server.connect() as connection:
                    sql.scalar(connection, "SELECT 1")
                return True
            except PowerprofError:
                if server.private and not getattr(server, "alive", lambda: False)():
                    break
                time.sleep(0.25)
        if not server.private:
            raise PowerprofError("the server did not come back", "what was measured until then is kept")
        node.generation += 1
        index = list(self._nodes).index(self._key(case)) + 1
        node.server = self._launch(case, f"server-{index}-{node.generation}")
        node.settings = GlobalSettings(node.server.connect)
        self._fill(case, node)
        return True

    def rest(self) -> None:
        """Before an idle baseline: the first server awake with its own settings, the others asleep."""
        self.enter(self._cases[0])

    def context(self, case: Case) -> Context:
        """Where the load of this condition connects and keeps its files."""
        return Context(
            self.server(case), self.login(case), self._private_tree().path / "load", self._options.client_cpus
        )

    def login(self, case: Case) -> Login:
        """The account, with the condition's schema."""
        login = self._node(case).server.login
        return Login(
            user=login.user,
            password=login.password,
            socket=login.socket,
            host=login.host,
            port=login.port,
            database=dataset.database_of(case) or login.database,
            tls=login.tls,
        )

    def connect(self, case: Case) -> Sql:
        """A control connection in the condition's schema."""
        return sql.connect(self.login(case))

    def server(self, case: Case) -> Server:
        """The server on which this condition runs."""
        return self._node(case).server

    @property
    def server_pids(self) -> tuple[int, ...]:
        """The servers' processes on this host."""
        return tuple(pid for node in self._nodes.values() if (pid := node.server.pid) is not None)

    def _private_tree(self) -> RunTree:
        if self._tree is None:
            raise PowerprofError("the servers of the experiment have been stopped")
        return self._tree

    def _node(self, case: Case) -> _Node:
        return self._nodes[self._key(case)]

    def _run(self, case: Case, node: _Node, statements: Sequence[str]) -> None:
        if not statements:
            return
        login = node.server.login
        name = dataset.database_of(case)
        with node.server.connect(database=name or login.database) as connection:
            sql.execute(connection, *statements)

    def _explain(self, case: Case) -> list[tuple[Explain, list[dict[str, object]]]]:
        wanted = [*case.workload.definition.explain, *case.condition.explain]
        if not wanted:
            return []
        found = []
        self.enter(case)
        with self.connect(case) as connection:
            sql.execute(connection, *case.load.session)
            for one in wanted:
                rows = plans.explain(connection, one.statement)
                plans.check_plan(case.name, one, rows)
                found.append((one, rows))
        return found

    def _sleep(self, node: _Node) -> None:
        pid = node.server.pid
        if node.server.private and pid is not None and not node.asleep:
            os.kill(pid, signal.SIGSTOP)
            node.asleep = True

    def _wake(self, node: _Node) -> None:
        pid = node.server.pid
        if node.asleep and pid is not None:
            os.kill(pid, signal.SIGCONT)
            node.asleep = False


def _check_supported(case: Case, options: BenchOptions) -> None:
    kind = case.workload.definition.topology.kind
    if kind != "standalone":
        raise UsageError(
            f"{case.qualified} wants the topology {kind}: it has several servers",
            "powerprof workloads " + case.workload.definition.name,
        )
    if options.given is not None and (case.server.my_cnf or case.server.environment):
        raise UsageError(
            f"{case.qualified} needs a server started with its own settings, which a given server cannot be",
            "leave --socket or --host out: a private server is started",
        )
