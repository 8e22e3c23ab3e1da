# SPDX-License-Identifier: Apache-2.0
"""Saved runs of many hosts as two tables that any SQL engine reads; the only importer of DuckDB.

`runs` has a row a run, `figures` a row a figure of it; `store` and `run` join them. DuckDB writes the files: pyarrow
is twice as large, and who asks for tables wants an engine that answers.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from powerprof.experiment.records import Comparison
from powerprof.model.attribution import Attribution
from powerprof.model.records import Run
from powerprof.model.runs import RecordHead, RunInfo, RunStore, decode_record
from powerprof.report import csv_file
from powerprof.report.files import check_output, write_output
from powerprof.report.kinds import kind_of
from powerprof.report.stacks import frames_of
from powerprof.system import paths
from powerprof.system.errors import CapabilityError, DataError, PowerprofError

_TEXT, _NUMBER = "VARCHAR", "DOUBLE"
RUNS = {
    **dict.fromkeys(("store", "run", "schema", "command"), _TEXT),
    "started_at": "TIMESTAMPTZ",
    **dict.fromkeys(("host", "kernel", "cpu_model", "idle_driver"), _TEXT),
    **{"cpus": "INTEGER", "version": _TEXT, "server": _TEXT, "interrupted": "BOOLEAN", "labels": "VARCHAR[]"},
    **dict.fromkeys(("target", "answer"), _TEXT),
}
FIGURES = {
    **dict.fromkeys(("store", "run", "part", "figure", "unit", "kind"), _TEXT),
    **dict.fromkeys(("value", "low", "high"), _NUMBER),
    **dict.fromkeys(("mechanism", "process", "thread", "verdict"), _TEXT),
}
_RUN_COLUMNS = ("part", "figure", "unit", "kind", "value", "low", "high", "mechanism", "process", "thread")
_MOST_FOLDERS = 100_000

Row = dict[str, Any]


class _Head(RecordHead):
    """What of a record is in its row."""

    host: dict[str, Any] = msgspec.field(default_factory=dict)
    tool: dict[str, Any] = msgspec.field(default_factory=dict)
    server: dict[str, Any] | None = None


def export(directory: Path, target: Path, say: Callable[[str], None]) -> tuple[int, int]:
    """Write TARGET/runs.parquet and figures.parquet of the runs in a directory and in the folders below it, one a host.

    Returns how many runs and figures there are; a run that cannot be read is reported and left out. Raises
    CapabilityError without DuckDB, PowerprofError where a file cannot be written.
    """
    counts, engine = [0, 0], _engine()
    for name in ("runs.parquet", "figures.parquet"):
        check_output(str(target / name))
    with tempfile.TemporaryDirectory(dir=paths.temporary_base(), prefix="powerprof-") as folder:
        runs, figures = Path(folder) / "runs.json", Path(folder) / "figures.json"
        with runs.open("wb") as runs_file, figures.open("wb") as figures_file:
            for where, store, info in _all(directory):
                try:
                    row, rows = _read(store, where, info)
                except DataError as error:
                    say(f"{info.path}: {error.reason}: left out")
                    continue
                runs_file.write(msgspec.json.encode(row) + b"\n")
                figures_file.writelines(msgspec.json.encode(row) + b"\n" for row in rows)
                counts[0] += 1
                counts[1] += len(rows)
        for source, columns in ((runs, RUNS), (figures, FIGURES)):
            made = source.with_suffix(".parquet")
            _write(engine, source, columns, made)
            write_output(str(target / made.name), made.read_bytes())
    return counts[0], counts[1]


def _all(directory: Path) -> Iterator[tuple[str, RunStore, RunInfo]]:
    """Every run, with the name of the folder that it lies in ('' for the directory itself)."""
    try:
        below = [folder for folder in islice(sorted(directory.iterdir()), _MOST_FOLDERS) if folder.is_dir()]
    except OSError as error:
        raise PowerprofError(
            f"cannot read {directory} ({(error.strerror or str(error)).lower()})",
            "name the folder of the runs with --runs-dir",
        ) from error
    for folder in (directory, *(folder for folder in below if not (folder / "run.json").is_file())):
        store = RunStore(folder)
        for info in store.list():
            yield "" if folder == directory else folder.name, store, info


def _read(store: RunStore, where: str, info: RunInfo) -> tuple[Row, list[Row]]:
    head = decode_record(info.path, _Head)
    key = {"store": where, "run": info.id}
    row = key | {
        "schema": head.schema,
        "command": head.command or info.id.rpartition("-")[0],
        "started_at": head.started_at,
        "host": head.host.get("hostname"),
        **{name: head.host.get(name) for name in ("kernel", "cpu_model", "idle_driver", "cpus")},
        "version": head.tool.get("version"),
        "server": (head.server or {}).get("version"),
        **{name: getattr(info, name) for name in ("interrupted", "labels", "target", "answer")},
    }
    kind = kind_of(head)
    record = decode_record(info.path, kind.record) if kind is not None else None
    return row, [key | figure for figure in figures_of(record)]


def figures_of(record: object) -> Iterator[Row]:
    """The figures of a record: of a run by phase, of a comparison of A, B and their difference, of an attribution by
    thread and function. Of other kinds there is the row of the run only."""
    if isinstance(record, Comparison):
        for metric in record.metrics:
            common = {"figure": metric.name, "unit": metric.unit, "kind": metric.kind}
            for part, side in (("a", metric.a), ("b", metric.b)):
                yield common | {"part": part, "value": side.mean} | _ends(side.ci95)
            difference = metric.difference
            compared = {"part": "b_minus_a", "value": difference.b_minus_a, "verdict": metric.verdict}
            yield common | compared | _ends(difference.ci95)
            yield common | {"part": "b_minus_a", "unit": "%", "value": difference.percent}
    elif isinstance(record, Attribution):
        for wakeup in record.wakeups:
            yield {
                "part": record.target.label,
                "figure": f"wakeups {frames_of(wakeup)[-1]}",
                "unit": "1/s",
                "kind": "measured",
                "value": wakeup.rate_hz,
                "mechanism": wakeup.mechanism,
                "thread": wakeup.thread.label,
            }
    elif isinstance(record, Run):
        lines = csv_file.run(record)
        next(lines)
        for line in lines:
            yield {name: cell for name, cell in zip(_RUN_COLUMNS, line, strict=False) if cell not in (None, "")}


def _ends(interval: Any) -> Row:
    low, high = interval or (None, None)
    return {"low": low, "high": high}


def _engine() -> Any:
    try:
        import duckdb
    except ImportError as error:
        raise CapabilityError("DuckDB is not installed", "pip install 'powerprof[parquet]'") from error
    return duckdb


def _write(duckdb: Any, source: Path, columns: dict[str, str], made: Path) -> None:
    # Nothing is fetched: Parquet and JSON are in it.
    settings = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false", "threads": "1"}
    named = ", ".join(f"{name}: '{kind}'" for name, kind in columns.items())
    with duckdb.connect(config=settings) as engine:
        read = f"read_json('{source}', format = 'newline_delimited', columns = {{{named}}})"
        try:
            engine.execute(f"COPY (SELECT * FROM {read}) TO '{made}' (FORMAT parquet, COMPRESSION zstd)")  # noqa: S608
        except duckdb.Error as error:
            reason = str(error).partition("\n")[0]
            raise PowerprofError(
                f"DuckDB cannot write {made.name} ({reason[:200]})", "make room there, or name another folder"
            ) from error
