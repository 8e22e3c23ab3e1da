# SPDX-License-Identifier: Apache-2.0
"""Write and read the golden files: every form of sample records and of saved fixtures, as a reader sees it.

Records of distinct figures, and those of unknown ones, have one file each with all their forms.

`python -m tests.programs.golden_files` writes tests/golden anew. A change of these files is a change of what users see.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from powerprof.queries.records import Queries
from powerprof.report.exports import export
from powerprof.report.kinds import document_of, lines_of, load_saved, reported_kind
from powerprof.report.wording import word_record
from tests.conftest import REPOSITORY
from tests.unit.cli import command_lines
from tests.unit.report import distinct_records, sample_records
from tests.unit.report.live_pages import LIVE_PAGES

GOLDEN = REPOSITORY / "tests/golden"
_SAVED = REPOSITORY / "tests/fixtures/saved"
_TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z|(?<=\"seconds_s\": )[\d.e-]+")
# The durations of steps that nothing measures.
_NO_TIME = re.compile(r"(?<=,)\d[\d.]*e-0[4-9](?=,)")
_WIDTHS = (40, 80, 200)
_SAMPLES = (
    *(
        "idle_run",
        "load_run",
        "comparison",
        "sweep",
        "sweep_comparison",
        "attribution",
        "sliced_attribution",
        "deep_idle",
        "on_cpu",
    ),
    "diagnosis",
)


def records() -> dict[str, Callable[[], Any]]:
    """Return the makers of all records, by name."""
    samples = {name: getattr(sample_records, name) for name in _SAMPLES}
    saved = {f"saved-{path.name}": _loader(path.name) for path in sorted(_SAVED.iterdir())}
    return {**samples, **LIVE_PAGES, **saved}


def _loader(name: str) -> Callable[[], Any]:
    return lambda: load_saved(str(_SAVED / name), None)


def forms_of(record: Any) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each form."""
    record = word_record(record)
    kind = reported_kind(record)
    for width in _WIDTHS:
        yield f"{width}.txt", "\n".join(lines_of(record, width))
    if "everything" in document_of(record).views:
        yield "all.txt", "\n".join(lines_of(record, 200, everything=True))
    for file in ("csv", "md", "html", *(["folded"] if kind.stacks and not isinstance(record, Queries) else [])):
        text = export(record, file).decode()
        if "seconds_s" in text:
            text = _NO_TIME.sub("…", text)
        yield ("html.txt", text_of(text)) if file == "html" else (file, text)
    # Some samples are made now.
    yield "json", _TIME.sub("…", json_text(msgspec.to_builtins(record)))


def json_text(value: Any, indent: str = "") -> str:
    """Return JSON with at most 120 columns and at most nine digits per figure."""
    if isinstance(value, float):
        value = float(f"{value:.9g}")
    if isinstance(value, dict | list):
        inner = indent + "  "
        parts = (
            [f"{json.dumps(str(key))}: {json_text(each, inner)}" for key, each in value.items()]
            if isinstance(value, dict)
            else [json_text(each, inner) for each in value]
        )
        begin, end = "{}" if isinstance(value, dict) else "[]"
        short = f"{begin}{', '.join(parts)}{end}"
        if len(indent) + len(short) <= 120 and "\n" not in short:
            return short
        return f"{begin}\n{inner}" + f",\n{inner}".join(parts) + f"\n{indent}{end}"
    return json.dumps(value, ensure_ascii=False)


class _Words(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self._skipped = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._skipped += tag in ("style", "script")
        self.words += [value for name, value in attrs if name in ("title", "aria-label", "alt") and value]

    def handle_endtag(self, tag: str) -> None:
        self._skipped -= tag in ("style", "script")

    def handle_data(self, data: str) -> None:
        if not self._skipped and data.strip():
            self.words.append(" ".join(data.split()))


def text_of(page: str) -> str:
    """Return the words of a page, one text node or label per line."""
    reader = _Words()
    reader.feed(page)
    return "\n".join(reader.words)


_SHAPE = re.compile(r"<(rect|circle|line|span)\b([^>]*)>")
_PLACE = re.compile(r' (x|y|x1|x2|y1|y2|cx|cy|width|height|style)="([^"]*)"')


def drawing_of(page: str) -> str:
    """Return the shapes of the charts of a page with their places, one per line."""
    shapes = (
        (shape[1], " ".join(f"{name}={place}" for name, place in _PLACE.findall(shape[2])))
        for shape in _SHAPE.finditer(page)
    )
    return "\n".join(f"{kind} {places}" for kind, places in shapes if places)


def distinct_text(name: str, *, known: bool) -> str:
    """Return all forms of a record of distinct figures, or of unknown ones, below each other."""
    return "\n".join(f"== {form}\n{text}" for form, text in distinct_records.forms(name, known=known))


def distinct_files() -> dict[str, tuple[str, bool]]:
    """Return the files of records of distinct figures: file → name of the record, and whether its figures are known."""
    return {
        f"{'distinct' if known else 'unknown'}-{re.sub('powerprof.|/1', '', name).replace(' ', '-')}.txt": (name, known)
        for name in distinct_records.names()
        for known in ((True,) if name in distinct_records.KNOWN_ONLY else (True, False))
    }


def main() -> None:
    """Write all golden files anew."""
    GOLDEN.mkdir(exist_ok=True)
    for path in GOLDEN.iterdir():
        path.unlink()
    for name, make in records().items():
        for suffix, text in forms_of(make()):
            (GOLDEN / f"{name}.{suffix}").write_bytes(text.encode())
    for file, (name, known) in distinct_files().items():
        (GOLDEN / file).write_bytes(distinct_text(name, known=known).encode())
    with TemporaryDirectory() as folder:
        for file, make_blocks in command_lines.FILES.items():
            (GOLDEN / file).write_bytes(command_lines.file_text(make_blocks(Path(folder))).encode())


if __name__ == "__main__":
    main()
