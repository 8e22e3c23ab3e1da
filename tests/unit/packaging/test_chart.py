# SPDX-License-Identifier: Apache-2.0
"""The Helm chart without Helm: versions, values and their schema, and the files that it takes from monitoring."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import yaml

from powerprof import __version__
from tests.conftest import REPOSITORY

CHART = REPOSITORY / "packaging/chart"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())


def paths(part: dict[str, Any], schema: dict[str, Any], before: str = "") -> Iterator[str]:
    """The dotted names of the values. A value whose schema lists no keys is one value."""
    for key, value in part.items():
        known = schema["properties"][key]
        yield from paths(value, known, f"{before}{key}.") if "properties" in known else (f"{before}{key}",)


def test_the_versions_are_those_of_the_program() -> None:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (about["version"], about["appVersion"]) == (__version__, __version__)


def test_the_schema_accepts_the_defaults_and_knows_no_other_value() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.validate(VALUES, SCHEMA)
    assert SCHEMA["properties"].keys() - VALUES.keys() == {"global"}


def test_each_value_is_used_and_each_used_value_exists() -> None:
    text = "\n".join(file.read_text() for file in (CHART / "templates").iterdir())
    used = set(re.findall(r"\.Values\.([A-Za-z.]+)", text))
    assert used == set(paths(VALUES, SCHEMA))


def test_the_rules_and_the_dashboard_are_the_files_of_monitoring() -> None:
    linked = {file.name: file.resolve() for file in (CHART / "files").iterdir()}
    assert linked == {
        name: REPOSITORY / "monitoring" / name for name in ("alerts.yml", "dashboard.json", "recording.yml")
    }
