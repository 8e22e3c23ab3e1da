# SPDX-License-Identifier: Apache-2.0
"""The generated references are those of the code: JSON, its schemas and the manual page."""

from __future__ import annotations

import json
import shutil
import subprocess
from functools import cache
from typing import Any

import jsonschema
import pytest

from powerprof.model.runs import encode_record
from tests.conftest import REPOSITORY
from tests.unit.report.sample_records import attribution, comparison, idle_run, load_run, on_cpu, sweep
from tools.pages import json_page, man_page, schemas
from tools.pages.schemas import json_schema, schema_names


def test_the_page_is_generated_from_the_types() -> None:
    assert json_page.PAGE.read_text(encoding="utf-8") == json_page.render(), json_page.COMMAND


def _keys(schema: Any) -> set[str]:
    found = {key for part in schema["$defs"].values() for key in part.get("properties", {})}
    return found | set(schema.get("properties", {}))


@pytest.mark.parametrize("name", schema_names())
def test_every_key_of_a_schema_is_on_the_page(name: str) -> None:
    text = json_page.PAGE.read_text(encoding="utf-8")
    schema = json.loads(json.dumps(json_schema(name)))
    if name == "powerprof.diagnosis/1":  # the evidence of a diagnosis is not a part of the contract
        schema["$defs"] = {key: schema["$defs"][key] for key in ("Finding", "LiveRemedy", "DiagnosedServer")}
    schema["$defs"].pop("ReplicationStatus", None)
    assert {key for key in _keys(schema) if f"`{key}`" not in text} == set()


def test_the_manual_page_is_that_of_the_code() -> None:
    assert man_page.PAGE.read_text(encoding="utf-8") == man_page.render(), man_page.COMMAND


def test_it_formats_without_a_complaint() -> None:
    groff = shutil.which("groff")
    if groff is None:
        pytest.skip("no capability: groff (apt install groff-base)")
    done = subprocess.run(
        [groff, "-man", "-Tutf8", "-ww", str(man_page.PAGE)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == ""
    assert "powerprof idle" in done.stdout


_RECORDS = {record.__name__: record for record in (idle_run, load_run, comparison, sweep, attribution, on_cpu)}


@cache
def _validator(name: str) -> Any:
    found = json.loads(schemas.file_of(name).read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(found)
    return jsonschema.Draft202012Validator(found)


@pytest.mark.parametrize("name", schema_names())
def test_the_published_schema_is_that_of_the_code(name: str) -> None:
    assert schemas.file_of(name).read_text(encoding="utf-8") == schemas.text_of(name), schemas.COMMAND
    _validator(name)


def test_no_schema_is_left_of_a_document_that_is_gone() -> None:
    assert {path.name for path in schemas.FOLDER.iterdir()} == {schemas.file_of(name).name for name in schema_names()}


@pytest.mark.parametrize("record", _RECORDS.values(), ids=_RECORDS)
def test_what_is_written_fits_its_schema(record: Any) -> None:
    document = json.loads(encode_record(record()))
    _validator(document["schema"]).validate(document)
    document["schema"] = "powerprof.nosuch/1"
    with pytest.raises(jsonschema.ValidationError):
        _validator(record().schema).validate(document)


@pytest.mark.parametrize(
    "saved", sorted((REPOSITORY / "tests/fixtures").glob("saved/*/run.json")), ids=lambda p: p.parent.name
)
def test_a_saved_run_fits_its_schema(saved: Any) -> None:
    document = json.loads(saved.read_text(encoding="utf-8"))
    _validator(document["schema"]).validate(document)
