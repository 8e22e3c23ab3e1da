# SPDX-License-Identifier: Apache-2.0
"""SHOW SLAVE STATUS with the words of each release."""

from __future__ import annotations

import re

import msgspec
import pytest

from powerprof.database import replication_status
from powerprof.database.base import StatementError
from powerprof.database.replication_status import parse_status
from powerprof.system.errors import PowerprofError
from tests.programs.answers import Answers


@pytest.mark.parametrize("row", [{}, {"Seconds_Behind_Master": "x", "Replicate_Ignore_Server_Ids": "a,²,5"}])
def test_what_is_not_there_is_unknown(row: dict[str, object]) -> None:
    status = parse_status(row)
    assert status.sql_running is None
    assert status.seconds_behind is None
    assert status.relay_log_bytes is None
    assert status.ignored_server_ids == ((5,) if row else ())


# A status row in which every figure is another one.
_STATUS = {
    "Connection_name": "left",
    "Slave_IO_State": "Waiting for master to send event",
    "Master_Host": "10.0.0.7",
    "Master_Port": 4001,
    "Connect_Retry": 11,
    "Master_Log_File": "binlog.000009",
    "Read_Master_Log_Pos": 5007,
    "Relay_Log_File": "relay.000003",
    "Relay_Log_Pos": 4711,
    "Relay_Master_Log_File": "binlog.000008",
    "Slave_IO_Running": "Yes",
    "Slave_SQL_Running": "No",
    "Exec_Master_Log_Pos": 3001,
    "Relay_Log_Space": 90210,
    "Seconds_Behind_Master": 77,
    "Last_IO_Errno": 1236,
    "Last_IO_Error": "fatal",
    "Last_SQL_Errno": 1062,
    "Last_SQL_Error": "Duplicate entry",
    "Replicate_Ignore_Server_Ids": "5, 6 7",
    "Master_Server_Id": 31,
}


def test_each_figure_of_a_status_is_of_its_own_column() -> None:
    renamed = {
        re.sub("Slave", "Replica", name).replace("Master", "Source"): value
        for name, value in _STATUS.items()
        if name != "Connection_name"
    }
    for row in (_STATUS, {**renamed, "Channel_Name": "left"}):
        status = parse_status(row)
        assert (status.channel, status.source_host, status.source_port) == ("left", "10.0.0.7", 4001)
        assert (status.io_running, status.sql_running, status.source_server_id) == ("Yes", False, 31)
        assert (status.seconds_behind, status.connect_retry_s, status.relay_log_bytes) == (77, 11, 90210)
        assert (status.read_position_bytes, status.executed_position_bytes) == (5007, 3001)
        assert (status.source_log_file, status.executed_log_file) == ("binlog.000009", "binlog.000008")
        assert (status.last_io_error_number, status.last_sql_error_number) == (1236, 1062)
        assert (status.last_io_error, status.io_state) == ("fatal", "Waiting for master to send event")
        assert status.ignored_server_ids == (5, 6, 7)


@pytest.mark.parametrize("name", [name for name in _STATUS if name != "Relay_Log_File" and name != "Relay_Log_Pos"])
def test_a_column_without_a_value_is_unknown_and_changes_no_other_field(name: str) -> None:
    full = msgspec.structs.asdict(parse_status(_STATUS))
    changed = msgspec.structs.asdict(parse_status({**_STATUS, name: None}))
    (field,) = [field for field, value in full.items() if changed[field] != value]
    assert changed[field] in (None, "", ())


def test_the_first_statement_that_the_server_knows_shows_replication() -> None:
    unknown = StatementError("syntax", None, 1064)
    connection = Answers({"SHOW ALL SLAVES": unknown, "SHOW REPLICA": unknown, "SHOW SLAVE": [_STATUS]})
    assert [status.connect_retry_s for status in replication_status.read_replication_status(connection)] == [11]
    assert replication_status.read_replication_status(Answers({})) == []
    with pytest.raises(PowerprofError, match="no statement that shows replication"):
        replication_status.read_replication_status(Answers({"SHOW": unknown}))
    with pytest.raises(StatementError, match="denied"):
        replication_status.read_replication_status(Answers({"SHOW": StatementError("denied", None, 1227)}))
