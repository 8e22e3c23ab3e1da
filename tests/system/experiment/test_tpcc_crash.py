# SPDX-License-Identifier: Apache-2.0
"""TPC-C's consistency conditions after the server was killed in the middle of its transactions and started again."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from powerprof.database import mysql, sql
from powerprof.database.private_server import PrivateServer
from powerprof.database.sandbox import find_server_account
from powerprof.experiment import bench_data
from powerprof.experiment.load import Context, LoadFailed, LoadOrder
from powerprof.experiment.load_clients import start_load
from powerprof.workloads.catalogue import find_workload
from powerprof.workloads.reading import resolve


def test_a_killed_server_has_all_or_nothing_of_each_transaction(mariadbd: Path, sysbench: Path, tmp_path: Path) -> None:
    workload = find_workload("tpcc")
    case = resolve(workload, "tpcc-single", {"load.clients": 4})
    schema = bench_data.schema_name(workload)
    with PrivateServer(settings=case.server.settings, connections=16) as server:
        bench_data.make_schema(server, workload, workload.definition.dataset, [])
        with server.connect(database=schema) as control:
            before = bench_data.read_done(control, str(case.load.counted))
            sql.execute(control, "CREATE TABLE seen (done BIGINT) ENGINE=InnoDB")
        running = start_load(
            case, Context(server, server.login.in_database(schema), tmp_path), LoadOrder(duration_s=60)
        )
        deadline = time.monotonic() + 60
        done = before
        while done < before + 20:
            assert time.monotonic() < deadline
            assert running.alive()
            time.sleep(0.1)
            with server.connect(database=schema) as control:
                done = bench_data.read_done(control, str(case.load.counted))
                # InnoDB shows a transaction before its log is on the disk: a later commit, answered, took it there.
                sql.execute(control, f"INSERT INTO seen VALUES ({done})")
        os.kill(server.pid, 9)
        with pytest.raises(LoadFailed):
            running.finish(30)
        # It reads this file at each start, and powerprof removes it after the first.
        init = server.directory / mysql._INIT_SQL
        init.write_text("")
        os.chown(init, *(find_server_account() or (-1, -1)))
        first = server.pid
        server._launch()
        server.wait_ready()
        assert server.pid != first
        with server.connect(database=schema) as control:
            # What was committed is there (innodb_flush_log_at_trx_commit = 1), and nothing is there by half.
            assert bench_data.read_done(control, str(case.load.counted)) >= done
            bench_data.check_data(control, case.qualified, case.load.checks)
            # The check sees a half: one order without its lines.
            sql.execute(control, "UPDATE orders SET o_ol_cnt = o_ol_cnt + 1 LIMIT 1")
            with pytest.raises(Exception, match="consistency check 4 of the data failed"):
                bench_data.check_data(control, case.qualified, case.load.checks)
