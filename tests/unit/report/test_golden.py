# SPDX-License-Identifier: Apache-2.0
"""Compare every form of sample records and saved fixtures with its golden file."""

from __future__ import annotations

import pytest

from tests.programs.golden_files import GOLDEN, forms_of, records

RECORDS = records()


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_reads_as_its_golden_files(name: str) -> None:
    made = {f"{name}.{suffix}": text for suffix, text in forms_of(RECORDS[name]())}
    kept = {file: (GOLDEN / file).read_bytes().decode() for file in made if (GOLDEN / file).exists()}
    assert made == kept, "python -m tests.programs.golden_files writes them anew"


def test_each_golden_file_belongs_to_a_record() -> None:
    assert {path.name.split(".")[0] for path in GOLDEN.iterdir()} == set(RECORDS)
    assert len(list(GOLDEN.iterdir())) >= 40
