# SPDX-License-Identifier: Apache-2.0
"""The JSON Schemas of the reference are those of the code, and what is written fits them."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jsonschema
import pytest

from powerprof.model.runs import encode_record
from tests.conftest import REPOSITORY
from tests.unit.report.sample_records import attribution, comparison, idle_run, load_run, on_cpu, sweep
from tools.pages import schemas
from tools.pages.schemas import schema_names

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
    "saved", sorted((REPOSITORY / "tests/fixtures").glob("saved-*/*/run.json")), ids=lambda p: p.parent.name
)
def test_what_an_older_version_saved_fits_as_well(saved: Any) -> None:
    document = json.loads(saved.read_text(encoding="utf-8"))
    _validator(document["schema"]).validate(document)
