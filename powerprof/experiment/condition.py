# SPDX-License-Identifier: Apache-2.0
"""A condition as a run keeps it, with a digest by which runs of the same work are known."""

from __future__ import annotations

import hashlib
import json

import msgspec

from powerprof.experiment.records import ConditionRecord
from powerprof.workloads.reading import Case

# What changes how a load is driven and not what is asked of the server.
_NOT_WORK = ("rate_hz", "maximum_rate_hz", "queries", "clients")


def condition_record(case: Case) -> ConditionRecord:
    """A condition as it is saved; `work` is a digest of statements, protocol, schema and dataset."""
    load = msgspec.to_builtins(case.load)
    settings = {**msgspec.to_builtins(case.server), **msgspec.to_builtins({"topology": case.topology})}
    asks = case.load.kind in ("statements", "slap", "pgbench", "connector-j")
    statements = case.load_statements() if asks else case.load.argv
    asked = {
        "load": {key: value for key, value in load.items() if key not in (*_NOT_WORK, "sql", "files")},
        "statements": statements,
        "dataset": msgspec.to_builtins(case.workload.definition.dataset),
        "setup": [*case.workload.definition.setup, *case.condition.setup],
    }
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]
    return ConditionRecord(
        name=case.name,
        workload=case.workload.definition.name,
        title=case.title,
        load=load,
        settings=settings,
        work=digest,
    )
