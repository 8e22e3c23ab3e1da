# SPDX-License-Identifier: Apache-2.0
"""The JSON Schema of every document, made from the types that write and read it."""

from __future__ import annotations

from typing import Any

import msgspec

from powerprof.report.documents.kinds import KINDS

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_PLACE = "#/$defs/{name}"


def names() -> list[str]:
    """The documents: `powerprof.run/1`, …"""
    return list(dict.fromkeys(kind.partition(" ")[0] for kind in KINDS))


def json_schema(name: str) -> dict[str, Any]:
    """The schema of a document; a run is that of any of the commands that save one."""
    commands = {kind.partition(" ")[2]: entry.load("record") for kind, entry in KINDS.items() if _is(kind, name)}
    schemas, parts = msgspec.json.schema_components(list(dict.fromkeys(commands.values())), ref_template=_PLACE)
    # A note is a sentence by the time that it is written.
    parts.pop("Note", None)
    schemas, parts = _without_notes(schemas), _without_notes(parts)
    whole: dict[str, Any] = schemas[0] if len(schemas) == 1 else {"anyOf": list(schemas)}
    return {"$schema": _DRAFT, "title": name, **whole, "$defs": dict(sorted(parts.items()))}


def _without_notes(schema: Any) -> Any:
    if isinstance(schema, dict):
        either = [one for one in schema.get("anyOf", ()) if one != {"$ref": _PLACE.format(name="Note")}]
        if len(either) == 1:
            return _without_notes(either[0])
        return {key: _without_notes(value) for key, value in schema.items()}
    return [_without_notes(one) for one in schema] if isinstance(schema, list | tuple) else schema


def _is(kind: str, name: str) -> bool:
    return kind == name or kind.startswith(f"{name} ")
