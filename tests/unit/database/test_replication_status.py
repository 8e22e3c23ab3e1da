# SPDX-License-Identifier: Apache-2.0
"""SHOW SLAVE STATUS in the words of each generation."""

from __future__ import annotations

import pytest

from powerprof.database.clients.performance import parse_status

_MYSQL_5_5 = {
    "Slave_IO_State": "Waiting to reconnect after a failed master event read",
    "Master_Host": "127.0.0.1",
    "Master_User": "repl",
    "Master_Port": 4000,
    "Connect_Retry": 60,
    "Master_Log_File": "binlog.000001",
    "Read_Master_Log_Pos": 107,
    "Relay_Log_Space": 539,
    "Slave_IO_Running": "Connecting",
    "Slave_SQL_Running": "Yes",
    "Exec_Master_Log_Pos": 107,
    "Seconds_Behind_Master": None,
    "Last_IO_Errno": 1236,
    "Last_IO_Error": "Got fatal error 1236",
    "Last_SQL_Errno": 0,
    "Last_SQL_Error": "",
    "Replicate_Ignore_Server_Ids": "",
    "Master_Server_Id": 1,
}


def test_mysql_5_5() -> None:
    status = parse_status(_MYSQL_5_5)
    assert (status.channel, status.source_host, status.source_port) == ("", "127.0.0.1", 4000)
    assert status.source_server_id == 1
    assert (status.io_running, status.sql_running, status.seconds_behind) == ("Connecting", True, None)
    assert (status.last_io_error_number, status.last_io_error) == (1236, "Got fatal error 1236")
    assert (status.last_sql_error_number, status.last_sql_error) == (0, None)
    assert (status.relay_log_bytes, status.read_position_bytes, status.connect_retry_s) == (539, 107, 60)
    assert status.ignored_server_ids == ()


def test_new_words_mean_the_same() -> None:
    renamed = {
        name.replace("Slave", "Replica").replace("Master", "Source"): value for name, value in _MYSQL_5_5.items()
    }
    assert parse_status({**renamed, "Channel_Name": ""}) == parse_status(_MYSQL_5_5)


def test_mariadb_has_named_channels() -> None:
    status = parse_status({**_MYSQL_5_5, "Connection_name": "left", "Replicate_Ignore_Server_Ids": "99, 7"})
    assert status.channel == "left"
    assert status.ignored_server_ids == (99, 7)


@pytest.mark.parametrize("row", [{}, {"Seconds_Behind_Master": "x", "Replicate_Ignore_Server_Ids": "a,²,5"}])
def test_what_is_not_there_is_unknown(row: dict[str, object]) -> None:
    status = parse_status(row)
    assert status.sql_running is None
    assert status.seconds_behind is None
    assert status.relay_log_bytes is None
    assert status.ignored_server_ids == ((5,) if row else ())
