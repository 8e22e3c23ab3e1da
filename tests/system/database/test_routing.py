# SPDX-License-Identifier: Apache-2.0
"""Two servers behind a router answer as one server does, also where a question needs tables of both."""

from __future__ import annotations

from pathlib import Path

import pytest

from powerprof.database import sql
from powerprof.database.base import Server
from powerprof.database.private_server import PrivateServer
from powerprof.database.topology import ServerTopology
from powerprof.experiment import bench_data
from powerprof.workloads.reading import read_workload, resolve

# The routing of the study on a few rows of its tables; the third order of each district has no lines.
_TABLES = """
CREATE TABLE customer (c_id INT, c_d_id INT, c_last VARCHAR(16), c_balance DECIMAL(12,2), PRIMARY KEY (c_d_id, c_id));
CREATE TABLE orders (o_id INT, o_d_id INT, o_c_id INT, o_carrier_id INT, PRIMARY KEY (o_d_id, o_id));
CREATE TABLE item (i_id INT PRIMARY KEY, i_name VARCHAR(24), i_price DECIMAL(5,2));
CREATE TABLE district (d_id INT PRIMARY KEY, d_next_o_id INT);
CREATE TABLE order_line (ol_o_id INT, ol_d_id INT, ol_number INT, ol_i_id INT, ol_amount DECIMAL(8,2),
  PRIMARY KEY (ol_d_id, ol_o_id, ol_number));
CREATE TABLE stock (s_i_id INT PRIMARY KEY, s_quantity INT);
INSERT INTO district VALUES (1, 4), (2, 4);
INSERT INTO customer VALUES (1, 1, 'BAR', 10), (2, 1, 'OUGHT', -5.5), (1, 2, 'ABLE', 0), (2, 2, 'BAR', 7.25);
INSERT INTO orders VALUES (1, 1, 2, 9), (2, 1, 1, NULL), (3, 1, 1, NULL), (1, 2, 1, 4), (2, 2, 2, NULL),
  (3, 2, 2, NULL);
INSERT INTO item VALUES (1, 'bolt', 1.25), (2, 'nut', 0.75), (3, 'washer', 0.1), (4, 'never sold', 99);
INSERT INTO stock VALUES (1, 12), (2, 40), (3, 9), (4, 91);
INSERT INTO order_line VALUES (1, 1, 1, 1, 2.5), (1, 1, 2, 3, 1), (2, 1, 1, 2, 3), (1, 2, 1, 3, 0.5), (2, 2, 1, 1, 5),
  (2, 2, 2, 2, 1.5), (2, 2, 3, 3, 0.2);
"""
_WORKLOAD = """schema = "powerprof.workload/1"
name = "joins"
title = "joins over two servers"
[dataset]
kind = "sql"
files = ["tables.sql"]
[load]
sql = ["SELECT 1"]
[conditions.one]
[conditions.pair.topology]
kind = "routed-pair"
routes.host-a = ["customer", "orders", "item"]
routes.host-b = ["district", "order_line", "stock"]
"""
_QUESTIONS = (
    "SELECT o_d_id, o_id, ol_number, i_name FROM orders JOIN order_line ON ol_d_id = o_d_id AND ol_o_id = o_id"
    " JOIN item ON i_id = ol_i_id ORDER BY 1, 2, 3",
    "SELECT o_d_id, o_id, ol_amount FROM orders LEFT JOIN order_line ON ol_d_id = o_d_id AND ol_o_id = o_id"
    " WHERE ol_o_id IS NULL ORDER BY 1, 2",
    "SELECT c_last, COUNT(*), SUM(ol_amount) FROM customer JOIN orders ON o_d_id = c_d_id AND o_c_id = c_id"
    " JOIN order_line ON ol_d_id = o_d_id AND ol_o_id = o_id GROUP BY c_last HAVING SUM(ol_amount) > 3 ORDER BY 1",
    "SELECT i_name FROM item WHERE i_id NOT IN (SELECT ol_i_id FROM order_line) ORDER BY 1",
    "SELECT d_id, d_next_o_id - 1 = (SELECT MAX(o_id) FROM orders WHERE o_d_id = d_id) FROM district ORDER BY 1",
    "SELECT COUNT(DISTINCT s_i_id) FROM order_line, stock WHERE ol_d_id = 2 AND s_i_id = ol_i_id AND s_quantity < 13",
    "SELECT i_name, s_quantity FROM item JOIN stock ON s_i_id = i_id WHERE i_price < 2 ORDER BY 2 DESC, 1 LIMIT 2",
)
_CHANGES = (
    *("UPDATE stock JOIN item ON i_id = s_i_id SET s_quantity = s_quantity - 3 WHERE i_name = 'bolt'", "BEGIN"),
    *("INSERT INTO orders VALUES (4, 1, 2, NULL)", "INSERT INTO order_line VALUES (4, 1, 1, 4, 99)"),
    *("UPDATE district SET d_next_o_id = 5 WHERE d_id = 1", "COMMIT", "BEGIN"),
    *("DELETE FROM order_line WHERE ol_d_id = 2", "DELETE FROM orders WHERE o_d_id = 2", "ROLLBACK"),
)


def test_a_router_answers_joins_over_both_servers_as_one_server_does(mariadbd: Path, tmp_path: Path) -> None:
    if not any(Path(folder, "mysql/plugin/ha_spider.so").exists() for folder in ("/usr/lib", "/usr/lib64")):
        pytest.skip("no capability: MariaDB's Spider engine (apt install mariadb-plugin-spider)")
    folder = tmp_path / "joins"
    folder.mkdir()
    (folder / "workload.toml").write_text(_WORKLOAD)
    (folder / "tables.sql").write_text(_TABLES)
    workload = read_workload(folder)
    with PrivateServer() as alone, ServerTopology("routed-pair") as pair:
        bench_data.make_schema(alone, workload, workload.definition.dataset, [])
        members = {member.name: member.server for member in pair.members}
        bench_data.make_schemas(members, workload, resolve(workload, "pair").topology, [], world_sql=None)
        answers = _answers(alone, workload_schema := str(bench_data.schema_name(workload)))
        assert [len(rows) for rows in answers[0]] == [7, 2, 2, 1, 2, 1, 2]
        # The changes are seen: the fourth order, its line, fewer bolts.
        assert answers[0] != answers[1]
        assert _answers(members["router"], workload_schema) == answers


def _answers(server: Server, schema: str) -> tuple[list[list[tuple[object, ...]]], list[list[tuple[object, ...]]]]:
    """To all questions, before and after the changes."""
    with server.connect(database=schema) as connection:
        before = [[tuple(row) for row in sql.fetch_rows(connection, question)] for question in _QUESTIONS]
        sql.execute(connection, *_CHANGES)
        return before, [[tuple(row) for row in sql.fetch_rows(connection, question)] for question in _QUESTIONS]
