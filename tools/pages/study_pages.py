# SPDX-License-Identifier: Apache-2.0
"""Write the tables of docs/studies from the saved studies: `python -m tools.pages.study_pages`.

`make studies` measures first. A saved study is docs/studies/runs/NAME.json, which `powerprof report` opens. Its figures
stay; its words follow workloads/studies/NAME.toml. A page can hold the tables of several studies.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from powerprof.experiment.study import StudyRun
from powerprof.model.runs import decode_record, encode_record
from powerprof.report.render.markdown import draw_table
from powerprof.report.study import answer_of, then_and_now
from powerprof.workloads.studies import Study, find_study
from tests.conftest import REPOSITORY

FOLDER = REPOSITORY / "docs/studies"
COMMAND = "python -m tools.pages.study_pages"


def marks(name: str) -> tuple[str, str]:
    """Return the lines before and after the table of a study."""
    return f"<!-- study {name}: written by make studies -->", f"<!-- study {name}: end -->"


def saved() -> list[Path]:
    """Return the paths of the saved studies."""
    return sorted((FOLDER / "runs").glob("*.json"))


def block(record: StudyRun, place: Path) -> str:
    """Return the text between the marks: the result, its conditions, the findings and the doubts."""
    host, quick = record.host, bool(record.options.get("quick"))
    cpu = ", ".join(str(host[key]) for key in ("cpu_model", "kernel") if host.get(key))
    cpus = f"{host['cpus']} CPUs" if host.get("cpus") else "unknown host"
    version = record.server and record.server.version
    server = f"server {version}, " if version else ""
    command = f"`powerprof study {record.study}{' --quick' if quick else ''}`"
    begin, end = marks(record.study)
    lines = [begin, f"**{answer_of(record)}**{' The run ended early.' if record.ended else ''}"]
    if quick:
        lines.append("This was a trial with short windows, so intervals are wide.")
    lines += [
        f"Measured with {command} on {record.started_at[:10]}: {server}{cpus} ({cpu}).",
        f"95 % intervals are in brackets. `powerprof report {place.relative_to(REPOSITORY)}` opens the run.",
        *draw_table(then_and_now(record)),
    ]
    runs: dict[str, list[str]] = {}
    for step in record.steps:
        for doubt in step.doubts if step.run else ():
            runs.setdefault(doubt, []).append(f"`{step.run}`")
    doubts = [f"- {', '.join(names)}: {doubt}" for doubt, names in runs.items()]
    if doubts:
        lines += ["", "Doubtful runs:", "", *doubts]
    return "\n".join([*lines, end])


def text_of(page: str, record: StudyRun, place: Path) -> str:
    """Return the page with its table, or unchanged if it has no marks."""
    begin, end = marks(record.study)
    return re.sub(f"{re.escape(begin)}.*?{re.escape(end)}", lambda _: block(record, place), page, flags=re.DOTALL)


def anonymous(record: StudyRun) -> StudyRun:
    """Return the record without the name of its host."""
    return msgspec.structs.replace(record, host={**record.host, "hostname": None})


def reworded(record: StudyRun, study: Study) -> StudyRun:
    """Return the record with the current words of its study. Raise ValueError if the findings changed."""
    rows = [
        msgspec.structs.replace(row, label=finding.label, then=finding.then, basis=finding.basis)
        for row, finding in zip(record.rows, study.findings, strict=True)
        if row.metric == finding.metric
    ]
    return msgspec.structs.replace(record, title=study.title, published=study.published, page=study.page, rows=rows)


if __name__ == "__main__":
    for path in saved():
        study = reworded(anonymous(decode_record(path, StudyRun)), find_study(path.stem))
        path.write_bytes(encode_record(study))
        page_path = FOLDER / study.page
        page_path.write_text(text_of(page_path.read_text(encoding="utf-8"), study, path), encoding="utf-8")
