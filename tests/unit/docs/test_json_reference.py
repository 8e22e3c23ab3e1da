# SPDX-License-Identifier: Apache-2.0
"""The page about JSON is generated from the types, and names every key of every document."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tools.pages import json_page
from tools.pages.schemas import json_schema, schema_names


def test_the_page_is_generated_from_the_types() -> None:
    assert json_page.PAGE.read_text(encoding="utf-8") == json_page.render(), json_page.COMMAND


def _keys(schema: Any) -> set[str]:
    found = {key for part in schema["$defs"].values() for key in part.get("properties", {})}
    return found | set(schema.get("properties", {}))


@pytest.mark.parametrize("name", [name for name in schema_names() if name not in json_page.EARLIER])
def test_every_key_of_a_schema_is_on_the_page(name: str) -> None:
    text = json_page.PAGE.read_text(encoding="utf-8")
    schema = json.loads(json.dumps(json_schema(name)))
    if name == "powerprof.diagnosis/1":  # the evidence of a diagnosis is not a part of the contract
        schema["$defs"] = {key: schema["$defs"][key] for key in ("Finding", "LiveRemedy", "DiagnosedServer")}
    schema["$defs"].pop("ReplicationStatus", None)
    assert {key for key in _keys(schema) if f"`{key}`" not in text} == set()
