# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/studies are those of the saved studies, and every study that can be run has its page."""

from __future__ import annotations

from powerprof.experiment.study import StudyRun
from powerprof.model.runs import decode_record
from powerprof.report.kinds import load_saved
from powerprof.workloads.catalogue import find_study, list_studies
from tests.contract.docs import study_pages


def test_pages_show_the_saved_studies() -> None:
    assert study_pages.saved() != []
    for path in study_pages.saved():
        record = decode_record(path, StudyRun)
        page = (study_pages.FOLDER / record.page).read_text(encoding="utf-8")
        assert study_pages.block(record, path) in page, study_pages.COMMAND
        assert load_saved(str(path)) == record == study_pages.anonymous(record)


def test_every_study_has_a_page_with_a_place_for_its_table() -> None:
    pages = {name: study_pages.FOLDER / find_study(name).page for name in list_studies()}
    assert [name for name, page in pages.items() if not page.is_file()] == []
    without = [name for name, page in pages.items() if study_pages.BEGIN not in page.read_text(encoding="utf-8")]
    assert without == []
    assert {path.stem for path in study_pages.saved()} <= set(list_studies())
