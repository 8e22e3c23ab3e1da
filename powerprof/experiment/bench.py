# SPDX-License-Identifier: Apache-2.0
"""The servers of an experiment: one per set of start-up settings, and only one of them awake at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from powerprof.database import sandbox, sql
from powerprof.database.base import Login
from powerprof.database.given import GivenServer
from powerprof.database.readers import ReadOnlyAccount
from powerprof.experiment import bench_data
from powerprof.experiment.bench_options import BenchOptions, check_supported
from powerprof.experiment.bench_settings import GivenSettings, NoSettings, PrivateSettings, ServerSettings
from powerprof.experiment.host_settings import ConditionHost, plan_host_settings
from powerprof.experiment.load import Context
from powerprof.measure.window import wait_and_read
from powerprof.model.text import Say
from powerprof.system.closeable import Closeable
from powerprof.system.errors import CapabilityError, PowerprofError, UsageError
from powerprof.workloads import trust
from powerprof.workloads.definition import Condition, Explain
from powerprof.workloads.reading import Case

if TYPE_CHECKING:
    from powerprof.database.base import Server, Sql
    from powerprof.database.private_server import PrivateServer
    from powerprof.database.runtree import RunTree
    from powerprof.measure.target_life import TargetLife


_SPARE_CONNECTIONS = 8


class Node(msgspec.Struct):
    """One server, or a topology with its first server, and the changes made in it; `stack` removes private ones.

    `is_sampled`: a repetition used this start.
    """

    server: Server
    settings: ServerSettings
    members: Mapping[str, Server]
    stack: ExitStack
    asleep: bool = False
    is_sampled: bool = False
    generation: int = 1
    made: list[str] = msgspec.field(default_factory=list)

    @property
    def pids(self) -> tuple[int, ...]:
        """The process IDs of the servers on this host."""
        return tuple(pid for server in self.members.values() if (pid := server.pid) is not None)

    def sleep(self) -> None:
        """Stop private servers by SIGSTOP, so that their wake-ups are in no other condition's figures."""
        if self.server.private and not self.asleep:
            self.asleep = True
            for server in self.members.values():
                require_private(server).pause()

    def wake(self) -> None:
        """Continue stopped servers."""
        if self.asleep:
            self.asleep = False
            for server in self.members.values():
                require_private(server).resume()


def require_private(server: Server) -> PrivateServer:
    """Return a server as a private one. All servers of a node are private if the first one is."""
    from powerprof.database.private_server import PrivateServer

    if not isinstance(server, PrivateServer):
        raise RuntimeError(f"{server.version} is not ours to stop")
    return server


def start_servers(
    case: Case, cases: Sequence[Case], name: str, options: BenchOptions, stack: ExitStack, tree: RunTree
) -> tuple[Mapping[str, Server], Sequence[str]]:
    """Start the private server or topology of a condition; return it by name, the loaded one first, and notes.

    It has room for the connections of all `cases`, because each of them may use it.
    """
    from powerprof.database import catalogue
    from powerprof.database.private_server import PrivateServer
    from powerprof.database.server_options import ServerOptions
    from powerprof.database.topology import MemberOptions, ServerTopology, plan_topology
    from powerprof.experiment.bench_options import member_cpus
    from powerprof.workloads.definition import TopologyMember

    most = max(other.load.clients for other in cases)
    wanted_options = ServerOptions(
        name=name,
        family=case.server.kind,
        settings=case.server.settings,
        environment=case.server.environment,
        port="ephemeral" if any(other.load.tcp for other in cases) else None,
        connections=most + _SPARE_CONNECTIONS,
        affinity=options.server_cpus,
        binary=options.server_binary,
        build=catalogue.load_build(case.server.build) if case.server.build else options.server_build,
    )
    wanted = case.topology
    if wanted.kind == "standalone":
        stack.callback(tree.remove, name)
        return {name: stack.enter_context(PrivateServer(wanted_options, tree=tree))}, ()
    affinities = {member.name: member_cpus(member, options) for member in plan_topology(wanted.kind, wanted.count)}
    declared = {**{name: TopologyMember() for name in affinities}, **wanted.members}
    members = {
        name: MemberOptions(
            settings=own.my_cnf,
            environment=own.environment,
            server_id=own.server_id,
            connect_retry_s=own.connect_retry_s,
            affinity=affinities.get(name),
        )
        for name, own in declared.items()
    }
    topology = stack.enter_context(
        ServerTopology(
            wanted.kind,
            wanted.count,
            options=wanted_options,
            members=members,
            network_namespaces=options.network_namespaces,
        )
    )
    return {member.name: member.server for member in topology.members}, topology.notes


_RETURN_S = 60.0


class Bench(Closeable):
    """All servers of the conditions, running, with filled tables and checked plans, while the context is open.

    Private servers that a block does not need are stopped by SIGSTOP, so that their wake-ups are in no other
    condition's figures. `note` receives every note for the run, also while the bench closes. With `apart` the
    conditions are measured one by one. A server that cannot start is then a `failure` of its conditions and does not
    end the others.

    Raises PowerprofError, CapabilityError, UsageError; PlanMismatch for another plan.
    """

    def __init__(
        self, cases: Sequence[Case], options: BenchOptions, note: Callable[[str], object], *, apart: bool = False
    ) -> None:
        self._cases = list(cases)
        self._options = options
        self._note = note
        self._apart = apart
        self._failures: dict[str, PowerprofError] = {}
        self._host = ConditionHost()
        self._stack = ExitStack()
        self._nodes: dict[str, Node] = {}
        self._tree: RunTree | None = None
        self._copies: Mapping[Path, Path] = {}
        self._readers: dict[str | None, Login] = {}
        self.plans: dict[str, list[tuple[Explain, list[dict[str, object]]]]] = {}

    # Life cycle

    def close(self) -> None:
        """Restore the host and given servers, and remove private ones."""
        try:
            self._host.close()
        finally:
            self._stack.close()

    def _open(self) -> None:
        from powerprof.database import templates
        from powerprof.database.runtree import RunTree

        check_supported(self._cases, self._options, apart=self._apart)
        self._check_host()
        self._tree = self._stack.enter_context(RunTree())
        # The client can run as another account, with a folder of its own in this one.
        (self._tree.path / "load").mkdir(0o711)
        gap = sandbox.describe_gap()
        if gap is not None:
            self._note(gap)
        given = self._options.given
        account = given.login.account if given is not None else None
        # Under sudo the clients run as the caller.
        owner = sandbox.choose_user(account)
        self._copies = trust.copy_trusted(self._cases, self._options.trust, self._tree.path, owner)
        if owner is not None:
            templates.let_pass(self._tree, owner)
        for case in self._cases:
            if self._key(case) not in {*self._nodes, *self._failures}:
                self._trying(case, self._start)
        if given is not None:
            for schema in dict.fromkeys(bench_data.load_database(case) for case in self._cases if case.load.reads_only):
                self._readers[schema] = self._stack.enter_context(ReadOnlyAccount(given.login, schema)).login
        for case in self._cases:
            if self.failure(case) is None:
                self._trying(case, self._explain)
        if all(self.failure(case) is not None for case in self._cases):
            raise next(iter(self._failures.values()))

    def _check_host(self) -> None:
        """Note the settings that this host does not have; a condition without any possible setting has failed."""
        skipped: dict[str, list[str]] = {}
        for case in self._cases:
            try:
                if reasons := plan_host_settings(case.condition.host).skipped:
                    skipped.setdefault("; ".join(reasons), []).append(case.name)
            except PowerprofError as error:
                if not self._apart:
                    raise
                self._failures[case.qualified] = error
        for text, names in skipped.items():
            self._note(f"{', '.join(names)}: not set: {text}")

    def _trying(self, case: Case, step: Callable[[Case], None]) -> None:
        try:
            step(case)
        except PowerprofError as error:
            if not self._apart or isinstance(error, UsageError | CapabilityError):
                raise
            self._failures[self._key(case)] = error

    def failure(self, case: Case) -> PowerprofError | None:
        """Return why this condition cannot be measured; None if it can."""
        return self._failures.get(case.qualified) or self._failures.get(self._key(case))

    def _start(self, case: Case) -> None:
        key, stack = self._key(case), self._stack.enter_context(ExitStack())
        members = self._members(case, f"server-{len(self._nodes) + len(self._failures) + 1}", stack)
        server = next(iter(members.values()))
        self._nodes[key] = Node(server, self._settings(server), members, stack)
        self._stack.callback(self._close_node, key)
        self._fill(case, self._nodes[key])

    def _settings(self, server: Server) -> ServerSettings:
        if server.private:
            return PrivateSettings(server.connect)
        if server.login.family == "postgresql":
            return NoSettings()
        return GivenSettings(server)

    def _members(self, case: Case, name: str, stack: ExitStack) -> Mapping[str, Server]:
        if self._options.given is not None:
            return {"given": self._options.given}
        members, notes = start_servers(case, self._cases, name, self._options, stack, self._private_tree())
        for note in notes:
            self._note(note)
        return members

    def _fill(self, case: Case, node: Node) -> None:
        made: set[Path] = set()
        for other in self._cases:
            if self._key(other) != self._key(case):
                continue
            if other.workload.folder not in made:
                made.add(other.workload.folder)
                folder = self._copies.get(other.workload.folder, other.workload.folder)
                workload = msgspec.structs.replace(other.workload, folder=folder)
                bench_data.make_schemas(
                    node.members, workload, case.topology, node.made, world_sql=self._options.world_sql
                )
                self._run(other, node, other.workload.definition.setup)
        # A condition that is compared with itself is listed twice and set up once.
        done: list[tuple[Path, Condition]] = []
        for other in self._cases:
            which = other.workload.folder, other.condition
            if self._key(other) == self._key(case) and which not in done:
                done.append(which)
                self._run(other, node, other.condition.setup)
                self._run_on_members(other, node)
        if case.server.disk_operations_hz is not None:
            # Slow down the disk last: otherwise writing the tables would take minutes.
            for server in node.members.values():
                require_private(server).slow_disk(case.server.disk_operations_hz)

    def _run_on_members(self, case: Case, node: Node) -> None:
        for name, statements in case.condition.on_members.items():
            if name not in node.members:
                raise UsageError(f"{case.qualified} has no server {name}", f"it has: {', '.join(node.members)}")
            with node.members[name].connect() as connection:
                sql.execute(connection, *statements)

    def _close_node(self, key: str) -> None:
        node = self._nodes.pop(key)
        if node.server.private:
            return
        try:
            for note in node.settings.close():
                self._note(note)
        finally:
            for name in node.made:
                bench_data.remove_schema(node.server, name)

    def _key(self, case: Case) -> str:
        """Return the key of a condition's server: equal start-up settings share one, topologies have separate ones."""
        if self._options.given is not None:
            return "given"
        settings, environment = sorted(case.server.settings.items()), sorted(case.server.environment.items())
        own = None if case.topology.kind == "standalone" else (case.condition.setup, case.condition.on_members)
        started = case.server.kind, case.server.build, case.server.disk_operations_hz
        return repr((started, settings, environment, case.topology, own))

    # One condition

    def enter(self, case: Case) -> None:
        """Activate the condition: wake its server, stop the others, set its global settings, run its statements."""
        for key, node in self._nodes.items():
            if key != self._key(case):
                node.sleep()
        node = self._node(case)
        node.wake()
        node.settings.apply(case.server.set_global)
        self._run(case, node, case.condition.enter)
        self._host.apply(case.condition.host)

    def leave(self, case: Case) -> None:
        """Restore the host, and run the statements of the condition after a block."""
        self._host.close()
        self._run(case, self._node(case), case.condition.leave)

    @contextmanager
    def quick_disks(self, case: Case) -> Iterator[None]:
        """Lift the limit of slow disks while the context is open, for work outside of windows."""
        operations_hz = case.server.disk_operations_hz
        servers = [] if operations_hz is None else [require_private(server) for server in self.members(case).values()]
        for server in servers:
            server.slow_disk(None)
        try:
            yield
        finally:
            for server in servers:
                server.slow_disk(operations_hz)

    def shared(self, cases: Sequence[Case]) -> bool:
        """Return whether one server serves all these conditions."""
        return len({self._key(case) for case in cases}) == 1

    def restartable(self, cases: Sequence[Case]) -> bool:
        """Return whether `take_start` prepares these conditions in a second: private servers under load, no topologies.

        An idle server recomputes statistics ten seconds after its tables were filled.
        """
        if self._options.given is not None or self.shared(cases):
            return False
        return not any(case.load.is_silent or case.topology.kind != "standalone" for case in cases)

    def switchable(self, cases: Sequence[Case]) -> bool:
        """Return whether these conditions can alternate quickly.

        They can on one server, or on private servers that are stopped and continued. Topologies cannot.
        """
        nodes = [self._node(case) for case in cases]
        alone = all(len(node.members) == 1 for node in nodes)
        return alone and (self.shared(cases) or all(node.server.private for node in nodes))

    def revive(self, case: Case) -> bool:
        """Wait for the server after a failed block, or start it again with its tables. Return True.

        Raises PowerprofError if a given server has ended, was stopped, or stays away.
        """
        node = self._node(case)
        node.wake()
        server = node.server
        if not server.private and server.pid is not None:
            # Another process at its address would not be the one that is measured.
            server.check()
        deadline = time.monotonic() + (5.0 if server.private else _RETURN_S)
        while time.monotonic() < deadline:
            try:
                with server.connect() as connection:
                    sql.fetch_scalar(connection, "SELECT 1")
                return True
            except PowerprofError:
                if server.private and not getattr(server, "alive", lambda: False)():
                    break
                time.sleep(0.25)
        if not server.private:
            raise PowerprofError("the server did not come back", "the partial results are saved")
        self._replace(case)
        return True

    def take_start(self, case: Case, say: Say) -> None:
        """Give a repetition a start of this condition's servers that no other repetition used."""
        node = self._node(case)
        if node.is_sampled:
            say(f"starting {case.name} again")
            node.wake()
            self._replace(case)
        node.is_sampled = True

    def _replace(self, case: Case) -> None:
        node, index = self._node(case), list(self._nodes).index(self._key(case)) + 1
        node.stack.close()
        node.members = {}  # If the next start fails, the other conditions continue.
        node.generation += 1
        node.members = self._members(case, f"server-{index}-{node.generation}", node.stack)
        node.server = next(iter(node.members.values()))
        node.settings = self._settings(node.server)
        node.made.clear()
        self._fill(case, node)

    def rest(self) -> None:
        """Prepare an idle baseline: the first server awake with its own settings, the others stopped.

        Replicating servers are never reliably idle, so all of a topology are stopped.
        """
        if self._cases[0].topology.kind == "standalone":
            self.enter(self._cases[0])
        else:
            self.hush()
        self._host.close()

    def hush(self) -> None:
        """Restore the host and stop all private servers."""
        self._host.close()
        for node in self._nodes.values():
            node.sleep()

    def context(self, case: Case) -> Context:
        """Return the server, account and files of the load of this condition."""
        folder = case.workload.folder
        return Context(
            self.server(case),
            self._load_login(case),
            self._private_tree().path / "load",
            self._options.client_cpus,
            self._copies.get(folder, folder),
            self._private_tree().mark,
        )

    def _load_login(self, case: Case) -> Login:
        """Return the account of the load: over TCP if the load requires it and the server is private."""
        from powerprof.database.private_server import PrivateServer

        login, server = self.login(case), self.server(case)
        if not case.load.tcp or not isinstance(server, PrivateServer):
            return login
        return Login(
            user=login.user,
            password=login.password,
            host=server.options.address,
            port=server.port,
            database=login.database,
        )

    def login(self, case: Case) -> Login:
        """Return the account with the condition's schema; a read-only one on a given server if the load requests it."""
        schema = bench_data.load_database(case)
        login = self._readers.get(schema) if case.load.reads_only else None
        return (login or self._node(case).server.login).in_database(schema)

    def connect(self, case: Case) -> Sql:
        """Return a control connection in the condition's schema."""
        return sql.connect(self.login(case))

    def server(self, case: Case) -> Server:
        """Return the server of this condition."""
        return self._node(case).server

    @property
    def life(self) -> TargetLife | None:
        """The life of the given server; None for private servers and for one on another host."""
        given = self._options.given
        return given.life if isinstance(given, GivenServer) else None

    def wait(self, seconds: float) -> None:
        """Wait. Raise TargetEndedError if a given server ends or stops meanwhile."""
        life = self.life
        wait_and_read([] if life is None else [life], seconds)
        if life is not None:
            life.check()

    @property
    def server_pids(self) -> tuple[int, ...]:
        """The process IDs of all servers on this host."""
        return tuple(pid for node in self._nodes.values() for pid in node.pids)

    def pids(self, case: Case) -> tuple[int, ...]:
        """Return the process IDs of the servers of this condition."""
        return self._node(case).pids

    def members(self, case: Case) -> Mapping[str, Server]:
        """Return the servers of this condition by name, the one under load first."""
        return self._node(case).members

    def _private_tree(self) -> RunTree:
        if self._tree is None:
            raise RuntimeError("the servers of the experiment have been stopped")
        return self._tree

    def _node(self, case: Case) -> Node:
        return self._nodes[self._key(case)]

    def _run(self, case: Case, node: Node, statements: Sequence[str]) -> None:
        if not statements:
            return
        with node.server.connect(database=bench_data.load_database(case)) as connection:
            sql.execute(connection, *statements)

    def _explain(self, case: Case) -> None:
        wanted = [*case.workload.definition.explain, *case.condition.explain]
        read_plans = self.plans[case.qualified] = []
        if not wanted:
            return
        self.enter(case)
        with self.connect(case) as connection:
            sql.execute(connection, *case.load.session)
            for wanted_plan in wanted:
                rows = sql.dialect_of(connection).explain(connection, wanted_plan.statement)
                bench_data.check_plan(case.name, wanted_plan, rows)
                read_plans.append((wanted_plan, rows))
