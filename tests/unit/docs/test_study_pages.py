# SPDX-License-Identifier: Apache-2.0
"""Compare the pages of docs/studies with the saved studies and with the studies that can run."""

from __future__ import annotations

import re
from collections import Counter

from powerprof.experiment.study import StudyRun
from powerprof.model.runs import decode_record
from powerprof.report.kinds import load_saved
from powerprof.workloads.studies import find_study, list_studies
from tests.conftest import REPOSITORY
from tools.pages import study_pages


def test_pages_show_the_saved_studies() -> None:
    assert study_pages.saved() != []
    for path in study_pages.saved():
        record = decode_record(path, StudyRun)
        page = (study_pages.FOLDER / record.page).read_text(encoding="utf-8")
        assert study_pages.block(record, path) in page, study_pages.COMMAND
        assert load_saved(str(path)) == record == study_pages.anonymous(record)
        assert study_pages.reworded(record, find_study(path.stem)) == record, study_pages.COMMAND


def test_every_study_has_a_page_with_a_place_for_its_table() -> None:
    pages = {name: study_pages.FOLDER / find_study(name).page for name in list_studies()}
    assert [name for name, page in pages.items() if not page.is_file()] == []
    for name, page in pages.items():
        text = page.read_text(encoding="utf-8")
        assert [text.count(mark) for mark in study_pages.marks(name)] == [1, 1], name
    assert {path.stem for path in study_pages.saved()} <= set(list_studies())


def test_a_run_id_names_one_run_of_one_study() -> None:
    records = [decode_record(path, StudyRun) for path in study_pages.saved()]
    uses = Counter(step.run for record in records for step in record.steps if step.run)
    assert {run: count for run, count in uses.items() if count > 1} == {}
    for record in records:
        page = (study_pages.FOLDER / record.page).read_text(encoding="utf-8")
        shown = set(re.findall(r"\b(?:run|idle|compare|sweep)-\d{4}\b", page))
        of_page = [other for other in records if other.page == record.page]
        assert shown <= {step.run for other in of_page for step in other.steps}, record.page


def test_a_page_marks_a_trial_and_doubtful_runs() -> None:
    for path in study_pages.saved():
        record = decode_record(path, StudyRun)
        block = study_pages.block(record, path)
        assert ("trial with short windows" in block) == bool(record.options.get("quick"))
        assert all(doubt in block for step in record.steps for doubt in step.doubts)


def test_the_rows_of_the_city_study_are_the_dataset() -> None:
    text = (study_pages.FOLDER / "power-efficiency.md").read_text(encoding="utf-8")
    workload = (REPOSITORY / "workloads/city/workload.toml").read_text(encoding="utf-8")
    assert "With an index five rows are read" in workload
    assert "all 20,395" in workload
    assert "the 20,395 rows and" in text
