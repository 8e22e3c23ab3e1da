# SPDX-License-Identifier: Apache-2.0
"""What the server's error log says of replication: its end is read, counted and forgotten."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime

from powerprof.diagnosis.evidence import LogSummary
from powerprof.paths import procfs
from powerprof.processes.reader_process import shared
from powerprof.statements.normal import normal_replication_error

_END_BYTES = 256 << 10
SPAN_S = 600.0
_TEXT = 1000
# 2026-11-20 11:33:57 · 261120 11:33:57 · 2026-11-20T11:33:57.123456Z
_WHEN = re.compile(r"(?:(\d{4})-(\d\d)-(\d\d)|(\d\d)(\d\d)(\d\d))[ T]+(\d{1,2}):(\d\d):(\d\d)(?:\.\d+)?(Z)?")
_DUMP = re.compile(r"Start binlog_dump to (?:slave|replica)_server\((\d{1,10})\)")
_SAME = re.compile(r"same server[_ ]?(?:uuid|id)", re.IGNORECASE)
_RETRY = "reconnecting to retry"
# Behind the words in brackets: within a statement that a line quotes, it is a value of a client's.
_DENIED = re.compile(r"^[^\[\]]{0,80}(?:\[[\w-]{1,40}\] ){1,4}Access denied for user '([^']{0,80})'@'([^']{0,255})'")
# MariaDB: "Slave SQL: Error …"; MySQL: "Replica SQL for channel '': Error …" and workers' "Worker 1 failed executing".
# Looked for behind the first [ERROR] of a line: a client's statement stands in it, and 64 KB that say [ERROR] again and
# again took 9 s where each was tried. A channel's name has at most 64 characters.
_SQL_ERROR = re.compile(r"\b(?:Slave|Replica) SQL(?: for channel '[^']{0,64}')?: (.*)")
_STARTED = re.compile("I/O thread: (Start asynchronous replication|connected to master)|ready for connections")


def read_log_end(pid: int) -> str | None:
    """The end of what the process writes to stderr, if that is a file: a server's error log is (log_error too)."""
    data = shared().read(pid, procfs() / str(pid) / "fd/2", _END_BYTES, from_end=True)
    return None if data is None else data.decode("utf-8", errors="replace")


def summarise(text: str, now_s: float | None = None) -> LogSummary:
    """Pure but for the clock and the time zone: count what the last ten minutes of a log say."""
    now_s = time.time() if now_s is None else now_s
    same = retries = sql_errors = 0
    sql_error: str | None = None
    sql_last: float | None = None
    denied: dict[str, int] = {}
    denied_lasts: dict[str, float] = {}
    dumps: dict[str, int] = {}
    lasts: dict[str, float] = {}
    first: float | None = None
    when: float | None = None
    last: float | None = None
    for line in text.splitlines():
        when = _moment(line) or when
        if when is None or not 0 <= now_s - when + 1 <= SPAN_S:
            continue
        first = when if first is None else min(first, when)
        if _STARTED.search(line):
            same = retries = 0
        elif _SAME.search(line):
            same, last = same + 1, now_s - when
        elif _RETRY in line:
            retries += 1
        elif dump := _DUMP.search(line):
            dumps[dump[1]] = dumps.get(dump[1], 0) + 1
            lasts[dump[1]] = now_s - when
        elif refused := _DENIED.search(line):
            account = f"{refused[1]}@{refused[2]}"
            denied[account] = denied.get(account, 0) + 1
            denied_lasts[account] = now_s - when
        elif failed := _SQL_ERROR.search(line.partition("[ERROR]")[2]):
            sql_error, sql_errors, sql_last = failed[1][:_TEXT], sql_errors + 1, now_s - when
    span = max(0.0, now_s - first) if first is not None else 0.0
    return LogSummary(
        span_s=span,
        same_id_count=same,
        same_id_last_s=last if same else None,
        retries_count=retries,
        dump_starts=_most(dumps),
        dump_last_s={key: lasts[key] for key in _most(dumps)},
        denied=_most(denied),
        denied_last_s={key: denied_lasts[key] for key in _most(denied)},
        sql_error=None if sql_error is None else normal_replication_error(sql_error),
        sql_errors_count=sql_errors,
        sql_error_last_s=sql_last,
    )


def _most(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda entry: -entry[1])[:32])


def _moment(line: str) -> float | None:
    stamp = _WHEN.match(line)
    if not stamp:
        return None
    year = int(stamp[1]) if stamp[1] else 2000 + int(stamp[4])
    month, day = (int(stamp[2]), int(stamp[3])) if stamp[1] else (int(stamp[5]), int(stamp[6]))
    try:
        moment = datetime(year, month, day, int(stamp[7]), int(stamp[8]), int(stamp[9]))
        return (moment.astimezone() if not stamp[10] else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def log_of(pid: int | None) -> LogSummary | None:
    """The summary for a process of this host; None where its log cannot be read."""
    text = read_log_end(pid) if pid is not None else None
    return summarise(text) if text is not None else None
