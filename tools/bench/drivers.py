# SPDX-License-Identifier: Apache-2.0
"""Our loads beside other drivers of the same work, in turns on one private server: TPC-C beside go-tpc, a select beside
pgbench.

Connecting and ending are in no figure. Turns are in ABBA order; the ratio has its interval over pairs.
"""

from __future__ import annotations

import json
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from powerprof.database import postgresql
from powerprof.database.base import Login
from powerprof.database.private_server import PrivateServer
from powerprof.experiment import bench_data
from powerprof.experiment.load import Context, LoadFailed, LoadOrder, LoadResult, ProcessLoad, RunningLoad
from powerprof.experiment.load_clients import start_load
from powerprof.experiment.plan import block_order
from powerprof.measure.procfs import family_cpu_ns
from powerprof.statistics.verdicts import compare_pairs
from powerprof.system import paths
from powerprof.workloads.catalogue import find_workload
from powerprof.workloads.reading import Case, read_workload, resolve
from tools.bench.figures import Verdict

GO_TPC = "github.com/pingcap/go-tpc@v1.0.12"
NEAR = 0.15
_RUN_IN_S = 1.0
_TURN_S, _PAIRS = 5.0, 12
_QUICK_TURN_S, _QUICK_PAIRS = 1.5, 3


@dataclass(frozen=True)
class Turn:
    """One turn of a driver: how much was done a second, and the server's CPU time for each."""

    rate_hz: float
    server_ms: float


@dataclass(frozen=True)
class Comparison:
    """Ours and theirs, pair by pair; `ratio` is ours in terms of theirs, with its interval."""

    ours: Sequence[Turn]
    theirs: Sequence[Turn]

    @property
    def ratio(self) -> float:
        """Mean of ours by mean of theirs."""
        return statistics.fmean(self._rates(self.ours)) / statistics.fmean(self._rates(self.theirs))

    @property
    def interval(self) -> tuple[float, float]:
        """95 % of the ratio."""
        found = compare_pairs(self._rates(self.theirs), self._rates(self.ours), seed=1).ratio_interval
        return (found.low, found.high) if found else (0.0, float("inf"))

    @staticmethod
    def _rates(turns: Sequence[Turn]) -> list[float]:
        return [turn.rate_hz for turn in turns]

    def print(self, what: str, other: str) -> None:
        """The table."""
        low, high = self.interval
        for name, turns in (("ours", self.ours), (other, self.theirs)):
            rates = self._rates(turns)
            print(
                f"  {name:<10}{statistics.fmean(rates):10,.1f}/s ({min(rates):,.1f} … {max(rates):,.1f}),"
                f" server {statistics.fmean(turn.server_ms for turn in turns):.3f} ms each"
            )
        print(f"  ours does {self.ratio:.3f} times the {what} of {other} (95 %: {low:.3f} to {high:.3f})")


def in_turns(ours: Callable[[], Turn], theirs: Callable[[], Turn], *, pairs: int) -> Comparison:
    """The two drivers one after the other, `pairs` times, ABBA."""
    found: dict[str, list[Turn]] = {"a": [], "b": []}
    for pair in block_order(pairs, 1):
        for arm in pair:
            found[arm].append((ours if arm == "a" else theirs)())
    return Comparison(found["a"], found["b"])


def go_tpc() -> Path | None:
    """The other driver: an installed one, or one built once of its module, as the Go proxy has it; None without Go."""
    found = shutil.which("go-tpc")
    if found is not None:
        return Path(found)
    folder = paths.cache_dir() / "bench"
    program = folder / "go-tpc"
    go = shutil.which("go")
    if program.exists() or go is None:
        return program if program.exists() else None
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        # By its version: not every proxy lists the versions, which `go install` asks for.
        fetch = [go, "mod", "download", "-json", GO_TPC]
        got = subprocess.run(fetch, cwd=place, capture_output=True, text=True, check=False)
        if got.returncode:
            print(f"  go-tpc is not to be had: {(got.stdout + got.stderr).strip()[-200:]}")
            return None
        source = Path(place) / "source"
        shutil.copytree(json.loads(got.stdout)["Dir"], source)
        subprocess.run(["chmod", "-R", "u+w", source], check=True)
        subprocess.run([go, "build", "-buildvcs=false", "-o", program, "./cmd/go-tpc"], cwd=source, check=True)
    return program


def compare_tpcc(program: Path, clients: int, *, pairs: int, turn_s: float) -> Comparison:
    """New orders a second on one warehouse, both drivers over TCP on the same tables, counted by the server; the
    consistency conditions hold afterwards.
    """
    workload = find_workload("tpcc")
    case = resolve(workload, "tpcc-single", {"load.clients": clients})
    name = bench_data.schema_name(workload)
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(
            PrivateServer(settings=case.server.settings, connections=clients + 8, port="ephemeral")
        )
        bench_data.make_schema(server, workload, workload.definition.dataset, [])
        user, password = server.login.user, server.login.password
        login = Login(user=user, password=password, host="127.0.0.1", port=server.port, database=name)
        context = Context(server, login, place)
        argv = [
            program, "tpcc", "run", "--host", "127.0.0.1", "--port", str(server.port), "--user", user, "--password",
            password, "--db", str(name), "--warehouses", "1", "--threads", str(clients),
        ]  # fmt: skip
        order = LoadOrder(duration_s=_RUN_IN_S + turn_s + 1)
        control = stack.enter_context(server.connect(database=name))

        def turn(start: Callable[[], RunningLoad]) -> Callable[[], Turn]:
            return lambda: _orders(
                start(), lambda: bench_data.read_done(control, str(case.load.counted)), server.pid, turn_s
            )

        found = in_turns(
            turn(lambda: start_load(case, context, order)),
            turn(lambda: ProcessLoad([*argv, "--time", f"{order.duration_s:g}s"], context, _said_nothing)),
            pairs=pairs,
        )
        bench_data.check_data(control, case.qualified, case.load.checks)
    return found


def _orders(running: RunningLoad, done: Callable[[], int], pid: int, turn_s: float) -> Turn:
    try:
        time.sleep(_RUN_IN_S)
        before, cpu_ns, start_s = done(), family_cpu_ns(pid) or 0, time.monotonic()
        time.sleep(turn_s)
        moved, spent_ns, end_s = done() - before, (family_cpu_ns(pid) or 0) - cpu_ns, time.monotonic()
        if not running.alive():
            raise LoadFailed("the driver ended before its turn did")
        running.finish(60)
    finally:
        running.kill()
    return Turn(moved / (end_s - start_s), spent_ns / 1e6 / max(1, moved))


def _said_nothing(_: str, elapsed_s: float) -> LoadResult:
    return LoadResult(None, elapsed_s)


def run_tpcc(quick: bool) -> Verdict:
    """TPC-C on one warehouse, 4 and 16 clients."""
    program = go_tpc()
    if program is None:
        return Verdict("TPC-C's driver beside go-tpc", False, "no go-tpc (install it, or Go)")
    ratios = []
    for clients in (4, 16):
        print(f"TPC-C, one warehouse, {clients} clients", flush=True)
        pairs, turn_s = (_QUICK_PAIRS, _QUICK_TURN_S) if quick else (_PAIRS, _TURN_S)
        found = compare_tpcc(program, clients, pairs=pairs, turn_s=turn_s)
        found.print("new orders", "go-tpc")
        ratios.append(found)
    return _verdict("TPC-C's driver", "go-tpc", ratios)


_ACCOUNTS = """schema = "powerprof.workload/1"
name = "accounts"
title = "one row by its key"
[dataset]
kind = "sql"
files = ["tables.sql"]
[server]
kind = "postgresql"
[load]
sql = ["SELECT balance FROM accounts WHERE id = {{uniform 1 100000}}"]
[conditions.statements]
[conditions.pgbench]
load.kind = "pgbench"
"""
_TABLES = """CREATE TABLE accounts (id int NOT NULL PRIMARY KEY, balance int NOT NULL, filler char(84) NOT NULL);
INSERT INTO accounts SELECT i, 0, '' FROM generate_series(1, 100000) AS i;
VACUUM ANALYZE accounts;
"""


def compare_pgbench(clients: int, *, pairs: int, turn_s: float) -> dict[str, Comparison]:
    """Selects a second as fast as they go: our two loads for PostgreSQL, each beside pgbench by itself.

    The server counts too late (see `gated.OpenGate`), so each driver's own count is taken.
    """
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder = place / "accounts"
        folder.mkdir()
        (folder / "workload.toml").write_text(_ACCOUNTS)
        (folder / "tables.sql").write_text(_TABLES)
        workload = read_workload(folder)
        server = stack.enter_context(PrivateServer(family="postgresql", connections=clients + 8))
        bench_data.make_schema(server, workload, workload.definition.dataset, [])
        context = Context(server, server.login.in_database(bench_data.schema_name(workload)), place)
        turns = {
            name: _own_turns(resolve(workload, name, {"load.clients": clients}), context, turn_s)
            for name in workload.definition.conditions
        }
        plain = _plain_pgbench(context, clients, turn_s)
        return {name: in_turns(turn, plain, pairs=pairs) for name, turn in turns.items()}


def _own_turns(case: Case, context: Context, turn_s: float) -> Callable[[], Turn]:
    def turn() -> Turn:
        cpu_ns = _cpu_ns(context)
        running = start_load(case, context, LoadOrder(duration_s=turn_s))
        try:
            result = running.finish(60)
        finally:
            running.kill()
        # pgbench counts its seconds from when all are connected, and says no other time.
        elapsed_s = turn_s if case.load.kind == "pgbench" else result.elapsed_s
        done = result.queries or 0
        return Turn(done / elapsed_s, (_cpu_ns(context) - cpu_ns) / 1e6 / max(1, done))

    return turn


def _plain_pgbench(context: Context, clients: int, turn_s: float) -> Callable[[], Turn]:
    script = context.directory / "plain.sql"
    script.write_text("\\set n random(1, 100000)\nSELECT balance FROM accounts WHERE id = :n;\n")
    login = context.login
    build = postgresql.find_build()
    argv = [
        build.binary.with_name("pgbench"), "--no-vacuum", f"--client={clients}", "--jobs=1", f"--time={turn_s:.0f}",
        f"--file={script}", f"--host={login.socket.parent if login.socket else login.host}", f"--username={login.user}",
        str(login.database),
    ]  # fmt: skip

    def turn() -> Turn:
        cpu_ns = _cpu_ns(context)
        said = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60 + turn_s).stdout
        done = int(re.findall(r"actually processed: (\d+)", said)[0])
        rate = float(re.findall(r"tps = (\d+(?:\.\d+)?)", said)[0])
        return Turn(rate, (_cpu_ns(context) - cpu_ns) / 1e6 / max(1, done))

    return turn


def _cpu_ns(context: Context) -> int:
    """CPU time of the server, with the processes of connections that have ended."""
    return family_cpu_ns(context.server.pid or 0) or 0


def run_pgbench(quick: bool) -> Verdict:
    """PostgreSQL's selects by key, 4 clients: sysbench behind its gate, and pgbench as a load starts it."""
    pairs, turn_s = (_QUICK_PAIRS, 1.0) if quick else (_PAIRS, 3.0)
    print("PostgreSQL, one row by its key, 4 clients", flush=True)
    found = compare_pgbench(4, pairs=pairs, turn_s=turn_s)
    for name, one in found.items():
        print(f" load of kind {name}")
        one.print("selects", "pgbench")
    return _verdict("PostgreSQL's load", "pgbench", list(found.values()))


def _verdict(ours: str, other: str, found: Sequence[Comparison]) -> Verdict:
    lowest, widest = min(one.interval[0] for one in found), max(one.interval[1] - one.interval[0] for one in found)
    doubt = f"an interval is {widest:.2f} wide: something else runs" if widest > 2 * NEAR else ""
    text = f"{ours} does at least {lowest:.2f} of what {other} does (target ≥ {1 - NEAR:.2f})"
    return Verdict(text, lowest >= 1 - NEAR, doubt)
