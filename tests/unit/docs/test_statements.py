# SPDX-License-Identifier: Apache-2.0
"""Statements of the pages, tested against the program: messages, file names, exit codes, rows, durations."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from powerprof.cli.commands import COMMANDS
from powerprof.experiment.study import StudyOptions, estimate_study_seconds
from powerprof.host.survey import survey_host
from powerprof.report.kinds import lines_of
from powerprof.system.errors import Declined
from powerprof.workloads.studies import find_study, list_studies
from tests.conftest import REPOSITORY
from tests.programs.in_process import Run, the_commands, up_to_the_first_window
from tests.unit.docs.test_reference import table_of
from tests.unit.layers import sources
from tests.unit.report.distinct_records import make_kind
from tools.pages.cli import example_duration
from tools.pages.pages import name_of, pages

__all__ = ["the_commands", "up_to_the_first_window"]

DOCS = REPOSITORY / "docs"
ENVIRONMENT = DOCS / "reference/environment.md"


def _flat(path: Path) -> str:
    return " ".join(path.read_text("utf-8").split())


# --- quoted messages


def _quoted() -> Iterator[tuple[str, str]]:
    """Yield (page, message): code in bold, in first cells of tables of messages, and after error, hint and note."""
    for page in pages():
        text = page.read_text("utf-8")
        found = re.findall(r"\*\*`([^`\n]{12,})`", text)
        found += re.findall(r"^\| `([^`\n]{12,})`", text.partition("| message |")[2], re.MULTILINE)
        found += re.findall(r"(?:^ {4}|`)(?:error|hint|note): ([^`\n]{12,}?)`?$", text, re.MULTILINE)
        yield from ((name_of(page), message) for message in found)


# Messages of other programs.
_OTHERS = ("sudo:",)
# Values within a message: an ellipsis, a number, a name in capitals, a file.
_VALUES = re.compile(r"…|\d[\d.,]*|\b[A-Z]{2,}\b|\S*/\S*|\S+\+0x\w+|\bnosuch\w*")


def _fragments() -> list[str]:
    """Return the fixed parts of the program's texts with at least two words, the longest first."""
    texts = {text for source in sources.modules().values() for _, text in sources.strings(source)}
    # A template of a note has one or two words for its value: {count:stack was|stacks were}.
    texts = {re.sub(r"\{\w+:[^|}]*\|([^}]*)\}", r"\1", text) for text in texts}
    parts = {part.strip(" :,.()") for text in texts for part in re.split(r"\{\w*\}", text)}
    return sorted((part for part in parts if " " in part), key=len, reverse=True)


def _unknown_words(message: str, fragments: list[str]) -> list[str]:
    """Return the words of a message that are in no text of the program. One word is the value of a template."""
    parts = [part for each in _VALUES.split(message) if " " in (part := each.strip(" :,.()"))]
    # A page can quote the begin of a text.
    left = " … ".join(part for part in parts if not any(part in fragment for fragment in fragments))
    for fragment in fragments:
        left = left.replace(fragment, " … ")
    words = re.findall(r"[a-z]{3,}", left)
    return words if len(words) > 1 else []


def test_a_quoted_message_is_printed_by_the_program() -> None:
    fragments = _fragments()
    quoted = [(page, message) for page, message in _quoted() if not message.startswith((*_OTHERS, *COMMANDS))]
    assert len(quoted) > 15
    assert [(*each, unknown) for each in quoted if (unknown := _unknown_words(each[1], fragments))] == []
    assert _unknown_words("process ids in this pid namespace are not those of the kernel's tracepoints", fragments)


# --- files


_SUFFIXES = "py|toml|c|h|bt|d|jsonl?|sh|ya?ml|txt|lua"
# Files of the reader, of the kernel's sources, and of the installed system.
_READERS = re.compile(r"^(?:/|\./|drivers/|\.github/|my-workloads/|~)")


def test_a_file_that_a_page_names_exists() -> None:
    missing = []
    for page in pages():
        for name in re.findall(rf"[\w./~-]*/[\w.-]+\.(?:{_SUFFIXES})\b", page.read_text("utf-8")):
            places = [REPOSITORY, page.parent, *(REPOSITORY / each for each in ("powerprof", "docs", "tests", "tools"))]
            places.append(REPOSITORY / "powerprof" / page.stem)
            if not _READERS.match(name) and not any((place / name).exists() for place in places):
                missing.append(f"{name_of(page)}: {name}")
    assert missing == []


# --- exit codes: the start of a row → command lines


EXAMPLES = {
    "an invalid or empty value": [
        "run index --rate 0", "idle --json ''", "idle --clients", "idle --clients 1 --clients 2"
    ],
    "an option without effect": ["energy --from x --duration 3", "--quiet idle --no-save"],
    "a kind of file": ["idle -o idle.folded", "idle --json /nonexistent/x.json", "idle --json - -o html:-"],
    "`run` without a condition": ["run", "compare -- true"],
    "a process name or id": ["attribute --pid nosuchd", "attribute --pid 4194303", "queries --pid 1"],
    "an input file": ["residency --from /nonexistent", "energy --from /tmp", "export --web-config /tmp"],
    "a `$TMPDIR`, working directory": ["--runs-dir /nonexistent runs"],
    "an output file, device": ["compare index no-index --json /dev/full", "--runs-dir /proc idle"],
    "a folder of `--save-workload`": ["queries --pid 1 --save-workload /etc", "queries --save-workload /etc/passwd"],
    "less than 128 MiB": ["idle --server-binary /bin/nosuch"],
    "a meter, a program": ["energy --meter meter_log"],
}  # fmt: skip
# Rows that need a server, a limit of the shell or an account: the files with their tests.
ELSEWHERE = {
    "a hard limit": "tests/system/errors/test_few_files.py",
    "a measured command": "tests/system/experiment/test_commands.py",
    "a server that refuses": "tests/system/errors/test_hostile_servers.py",
    "`diagnose --pid` of a server": "tests/system/diagnosis/test_diagnose_faults.py",
    "more clients than": "tests/system/errors/test_servers.py",
}


def _rows() -> dict[str, int]:
    return {row[0]: int(row[1]) for row in table_of(ENVIRONMENT, "### Checks before the first window")}


def test_each_row_of_exit_codes_has_examples() -> None:
    starts = [*EXAMPLES, *ELSEWHERE]
    assert [row for row in _rows() if sum(row.startswith(start) for start in starts) != 1] == []
    assert [start for start in starts if not any(row.startswith(start) for row in _rows())] == []
    assert [file for file in ELSEWHERE.values() if not (REPOSITORY / file).is_file()] == []


@pytest.mark.parametrize("start", EXAMPLES)
def test_a_row_of_exit_codes_is_true(up_to_the_first_window: Run, start: str) -> None:
    code = next(code for row, code in _rows().items() if row.startswith(start))
    ended = {line: up_to_the_first_window(shlex.split(line)) for line in EXAMPLES[start]}
    results = {line: (one.code, one.began, one.broke) for line, one in ended.items()}
    assert results == dict.fromkeys(EXAMPLES[start], (code, None, None))


# --- rows and durations


def test_the_rows_of_doctor_are_on_its_page() -> None:
    rows = table_of(ENVIRONMENT, "## doctor")
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row[0])}
    assert listed == {capability.name for capability in survey_host()}


def test_durations_are_those_of_the_plans() -> None:
    minutes = {name: estimate_study_seconds(find_study(name), StudyOptions()) / 60 for name in list_studies()}
    assert sum(minutes.values()) == pytest.approx(90, rel=0.1)
    assert "in about an hour and a half" in _flat(DOCS / "README.md")
    assert "(an hour and a half)" in (REPOSITORY / "Makefile").read_text("utf-8")
    assert example_duration("idle") == "about 3 min, with --quick about 50 s"
    assert "`--quick` takes 50 s" in _flat(DOCS / "how-to/idle-server.md")


def test_make_check_takes_the_time_that_pages_state() -> None:
    """Two workers run the unit tests; ruff and mypy take a minute."""
    seconds = json.loads((REPOSITORY / "tests/durations.json").read_text("utf-8"))
    unit = sum(each for file, each in seconds.items() if file.startswith("tests/unit/"))
    assert 3 * 60 < unit / 2 + 60 <= 5 * 60
    for file in ("Makefile", "CONTRIBUTING.md", "docs/dev/testing.md"):
        line = next(line for line in (REPOSITORY / file).read_text("utf-8").splitlines() if "mypy and the unit" in line
                    or "layers and unit tests" in line or line.startswith("| `make check`"))  # fmt: skip
        assert "five minutes" in line, file


@pytest.mark.parametrize("figure", ["0.44 % of a CPU", "64 µs"])
def test_a_cost_is_the_same_on_all_pages(figure: str) -> None:
    measured = {"64 µs": "docs/how-to/costly-statements.md"}.get(figure, "docs/dev/reports.md")
    assert all(figure in _flat(REPOSITORY / page) for page in ("README.md", "docs/cost-and-safety.md", measured))


def test_a_quoted_cost_of_a_trace_has_the_parts_of_the_report() -> None:
    record = make_kind("powerprof.attribution/1", known=True)
    record = replace(record, tool=replace(record.tool, cost_percent=None))
    printed = next(line for line in lines_of(record, 400) if line.startswith("powerprof itself: "))
    texts = [(name_of(page), page.read_text("utf-8")) for page in pages()]
    quoted = [(name, each) for name, text in texts for each in re.findall(r"[\d.]+ % CPU[^`\n]* MB", text)]
    assert quoted

    def form(text: str) -> str:
        return re.sub(r"[\d.,]+(?= )", "N", text)

    assert [each for each in quoted if form(each[1]) not in form(printed)] == []


def test_commands_that_ask_are_on_the_page_of_safety() -> None:
    asking = {"confirm", "ask_consent", "require_terminal"}
    modules = {path.removeprefix("cli/").removesuffix(".py"): source for path, source in sources.modules().items()
               if path.startswith("cli/") and path != "cli/terminal.py"}  # fmt: skip
    found = {name for name, source in modules.items() if any(f"{word}(" in source for word in asking)}
    assert found == {"cure", "doctor", "functions", "queries", "servers"} <= set(COMMANDS)
    text = _flat(DOCS / "cost-and-safety.md")
    asked = text.partition("**The exceptions ask first**")[2].partition(" - **")[0]
    assert all(f"`{name}" in asked for name in ("cure", "functions", "queries"))
    assert "`servers fetch` | downloads 1 to 150 MB after a question" in text
    assert "`cure --keep` and `--release` set timer slack without a question" in text


def test_every_command_returns_0_after_the_answer_n() -> None:
    """Each refused consent raises Declined, whose exit code is 0."""
    success = next(row for row in table_of(ENVIRONMENT) if row[0] == "0")
    assert "every command after the answer n to its question" in success[1]
    refused = [
        (path, ast.unparse(node.body[0]))
        for path, source in sources.modules().items()
        for node in sources.walk(source)
        if isinstance(node, ast.If) and re.match(r"not (?:consent\(|is_agreed)", ast.unparse(node.test))
    ]
    assert len(refused) >= 3
    assert [(path, raised) for path, raised in refused if not raised.startswith("raise Declined(")] == []
    assert Declined("").exit_code == 0
