# SPDX-License-Identifier: Apache-2.0
"""Writes docs/reference/schemas from the types of the records: `python -m tools.pages.schemas`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from powerprof.report.kinds import KIND_LOADERS
from powerprof.workloads.definition import normalise_schema
from tests.conftest import REPOSITORY

FOLDER = REPOSITORY / "docs/reference/schemas"
COMMAND = "python -m tools.pages.schemas"


_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_REFERENCE = "#/$defs/{name}"


def schema_names() -> list[str]:
    """Return the names of the documents: `powerprof.run/1` and others."""
    return list(dict.fromkeys(key.partition(" ")[0] for key in KIND_LOADERS))


def json_schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of a document; that of a run accepts the records of all commands that save runs."""
    records = [load().record for key, load in KIND_LOADERS.items() if key.partition(" ")[0] == name]
    schemas, parts = msgspec.json.schema_components(list(dict.fromkeys(records)), ref_template=_REFERENCE)
    # Notes are sentences in every written record.
    parts.pop("Note", None)
    schemas, parts = (normalise_schema(_without_notes(found)) for found in (schemas, parts))
    body: dict[str, Any] = schemas[0] if len(schemas) == 1 else {"anyOf": list(schemas)}
    return {"$schema": _DRAFT, "title": name, **body, "$defs": dict(sorted(parts.items()))}


def _without_notes(schema: Any) -> Any:
    if isinstance(schema, dict):
        choices = [choice for choice in schema.get("anyOf", ()) if choice != {"$ref": _REFERENCE.format(name="Note")}]
        if len(choices) == 1:
            return _without_notes(choices[0])
        return {key: _without_notes(value) for key, value in schema.items()}
    return [_without_notes(part) for part in schema] if isinstance(schema, list | tuple) else schema


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
