# SPDX-License-Identifier: Apache-2.0
"""Writes docs/reference/schemas from the types of the records: `python -m tests.contract.docs.schemas`."""

from __future__ import annotations

import json
from pathlib import Path

from powerprof.report.kinds import json_schema, schema_names
from tests.conftest import REPOSITORY

FOLDER = REPOSITORY / "docs/reference/schemas"
COMMAND = "python -m tests.contract.docs.schemas"


def file_of(name: str) -> Path:
    """`powerprof.run/1` → `run-1.schema.json`."""
    return FOLDER / f"{name.removeprefix('powerprof.').replace('/', '-')}.schema.json"


def text_of(name: str) -> str:
    """What the file holds."""
    return json.dumps(json_schema(name), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for known in schema_names():
        file_of(known).write_text(text_of(known), encoding="utf-8")
