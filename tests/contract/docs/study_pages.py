# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of docs/studies from the saved studies: `python -m tests.contract.docs.study_pages`.

`make studies` measures first. A saved study is docs/studies/runs/NAME.json, which `powerprof report` opens.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from powerprof.experiment.study import StudyRun
from powerprof.model.runs import decode_record, encode_record
from powerprof.report.study import answer_of, then_and_now
from tests.conftest import REPOSITORY

FOLDER = REPOSITORY / "docs/studies"
COMMAND = "python -m tests.contract.docs.study_pages"
BEGIN, END = "<!-- study: written by make studies -->", "<!-- study: end -->"


def saved() -> list[Path]:
    """The studies that are saved."""
    return sorted((FOLDER / "runs").glob("*.json"))


def block(record: StudyRun, place: Path) -> str:
    """What stands between the marks."""
    host, quick = record.host, " --quick" if record.options.get("quick") else ""
    where = ", ".join(str(host[key]) for key in ("cpu_model", "kernel") if host.get(key))
    cpus = f"{host['cpus']} CPUs" if host.get("cpus") else "unknown host"
    version = record.server.get("version", "unknown")
    named = place.relative_to(REPOSITORY)
    early = " It ended early." if record.interrupted else ""
    measured = f"{record.started_at[:10]}, server {version}, {cpus} ({where})"
    lines = [
        BEGIN,
        f"**{answer_of(record)}**{early}",
        f"By `powerprof study {record.study}{quick}`, {measured}.",
        f"95 % intervals in brackets. `powerprof report {named}` opens it.",
        *then_and_now(record),
        END,
    ]
    return "\n".join(lines)


def text_of(page: str, record: StudyRun, place: Path) -> str:
    """The page with its table. One without marks has none and keeps none."""
    return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: block(record, place), page, flags=re.DOTALL)


def anonymous(record: StudyRun) -> StudyRun:
    """Without the name of the machine that it was measured on."""
    return msgspec.structs.replace(record, host={**record.host, "hostname": None})


if __name__ == "__main__":
    for path in saved():
        study = anonymous(decode_record(path, StudyRun))
        path.write_bytes(encode_record(study))
        page_path = FOLDER / study.page
        page_path.write_text(text_of(page_path.read_text(encoding="utf-8"), study, path), encoding="utf-8")
