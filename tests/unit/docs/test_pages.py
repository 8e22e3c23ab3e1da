# SPDX-License-Identifier: Apache-2.0
"""The pages lead somewhere, show command lines that exist, and tell nothing of the machine they were written on."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from powerprof.cli.commands import COMMANDS
from powerprof.cli.idle import WindowOptions
from powerprof.experiment.idle import IdlePlan
from powerprof.model.text import approximate_time
from tests.conftest import REPOSITORY
from tools.pages import commands_page
from tools.pages.cli import commands
from tools.pages.pages import CommandLine, anchors, command_lines, links, name_of, pages

_EVERYWHERE = {"--help"}
_BEFORE_A_COMMAND = {"--help", "--version", "--debug", "--quiet", "--runs-dir"}
# What any Linux system may have, and a path of the exporter; one that begins elsewhere is of one machine.
_COMMON = {"bin", "boot", "debug", "dev", "etc", "lib", "opt", "proc", "run", "sbin", "srv", "sys", "tmp", "usr", "var"}
_PATH = re.compile(r"(?:^|(?<=[\s`\"'(=]))/([a-z][\w.-]*)/[\w.-]", re.MULTILINE)


def problems_of(line: CommandLine) -> list[str]:
    """What does not fit the commands that there are; words of a synopsis (`[--json FILE]`, `…`) are allowed."""
    words = [word.strip("[]") for word in shlex.split(line.text)]
    words = [word for word in words if word and word not in ("…", "...", "OPTIONS")]
    while words and words[0] in _BEFORE_A_COMMAND:
        if words.pop(0) == "--runs-dir":
            words.pop(0)
    if not words or words[0] == "COMMAND":
        return []
    known = commands()
    if words[0] not in known:
        return [f"no command {words[0]}"]
    command = known[words[0]]
    options = {one.name: one for one in command.options}
    rest = words[1:]
    if COMMANDS[command.name].runs_words and "--" in rest:
        rest = rest[: rest.index("--")]  # what follows is a command of the reader's
    found, others = [], 0
    while rest:
        word = rest.pop(0)
        name, equals, _ = word.partition("=")
        if not word.startswith("--") and word not in options:
            others += 1
        elif name in options:
            if options[name].takes_value and not equals and line.text != f"{command.name} {word}":
                if not rest or rest[0].startswith("--"):
                    found.append(f"{name} without its value")
                else:
                    rest.pop(0)
        elif name not in _EVERYWHERE:
            found.append(f"{command.name} has no {name}")
    repeated = any(one.name.endswith("…") for one in command.arguments)
    if others > len(command.arguments) and not repeated:
        found.append(f"{command.name} takes {len(command.arguments)} words, not {others}")
    return found


def test_links_lead_to_what_exists() -> None:
    assert [
        (name_of(page), link.target) for page in pages() for link in links(page) if is_broken(page, link.target)
    ] == []


def is_broken(page: Path, link: str) -> bool:
    """Return whether the file or the heading of a link of a page is missing."""
    path, _, heading = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    missing = not target.is_relative_to(REPOSITORY) or not target.exists()
    return missing or (bool(heading) and heading not in anchors(target))


def test_command_lines_name_commands_and_options_that_exist() -> None:
    wrong = [
        f"{name_of(page)}: powerprof {line.text}: {problem}"
        for page in pages()
        for line in command_lines(page)
        for problem in problems_of(line)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nosuch", ["no command nosuch"]),
        ("idle --nosuch 3", ["idle has no --nosuch", "idle takes 0 words, not 1"]),
        ("idle --clients", []),
        ("idle --clients --quick", ["--clients without its value"]),
        ("report", []),
        ("report one two", ["report takes 1 words, not 2"]),
        ("--debug idle", []),
        ("residency --from a b [--elapsed S]", []),
        ("compare A B --precision=2%", []),
        ("compare -- gzip -1 x -- gzip -9 x", []),
        ("run --nosuch -- gzip", ["run has no --nosuch"]),
    ],
)
def test_a_wrong_command_line_would_be_found(text: str, said: list[str]) -> None:
    assert problems_of(CommandLine(Path("page"), text)) == said


def test_the_pages_show_many_command_lines() -> None:
    """The finder of command lines has not gone blind."""
    shown = {line.text.split()[0] for page in pages() if page != commands_page.PAGE for line in command_lines(page)}
    assert shown >= set(commands())


def test_no_page_contains_a_path_of_one_machine() -> None:
    texts = {name_of(page): page.read_text(encoding="utf-8") for page in pages()}
    found = [
        (page, path[0].strip())
        for page, text in texts.items()
        for path in _PATH.finditer(text)
        if path[1] not in _COMMON
    ]
    assert found == []
    assert [page for page, text in texts.items() if str(REPOSITORY) in text] == []


def test_yaml_can_be_read() -> None:
    texts = [page.read_text() for page in pages()]
    blocks = [block for text in texts for block in re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)]
    assert blocks
    assert all(isinstance(yaml.safe_load(block), dict | list) for block in blocks)


def test_the_index_lists_every_page() -> None:
    index = REPOSITORY / "docs/README.md"
    listed = {(index.parent / link.target.partition("#")[0]).resolve() for link in links(index)}
    assert {name_of(page) for page in pages() if page.parent.parent == index.parent and page not in listed} == set()


def test_the_exporter_has_one_unit_name() -> None:
    texts = "".join(page.read_text(encoding="utf-8") for page in pages())
    assert set(re.findall(r"systemctl enable --now (\S+)", texts)) == {"powerprof"}
    assert set(re.findall(r"/([\w-]+)\.service\b", texts)) == {"powerprof"}
    assert "systemd/system/powerprof.service" in (REPOSITORY / "packaging/tree").read_text(encoding="utf-8")


def test_the_page_of_idle_shows_its_plan() -> None:
    text = (REPOSITORY / "docs/how-to/idle-server.md").read_text(encoding="utf-8")
    windows = WindowOptions()
    plan = IdlePlan(clients=windows.clients, duration_s=windows.duration, repeat=windows.repeat)
    assert (plan.phases_count, plan.repeat, plan.duration_s, plan.last_repeat) == (3, 5, 8, 2)
    assert "five windows of eight seconds" in text
    assert "the baseline again: two windows" in text
    assert text.count("five windows") == plan.phases_count
    assert (approximate_time(plan.seconds), "about three minutes" in text) == ("about 3 min", True)


def test_no_page_or_hint_promises_a_password_prompt() -> None:
    files = [*pages(), *(REPOSITORY / "powerprof/database").glob("*.py")]
    promise = re.compile(r"\bthe prompt\b|powerprof ask for it")
    assert [name_of(path) for path in files if promise.search(path.read_text(encoding="utf-8"))] == []


def test_the_readme_leads_to_the_index() -> None:
    assert "docs/README.md" in {link.target for link in links(REPOSITORY / "README.md")}


def test_titles_in_the_index_are_titles_of_the_pages() -> None:
    index = REPOSITORY / "docs/README.md"
    rows = re.findall(r"^\| \[(.+?)\]\((\S+?\.md)\)", index.read_text(encoding="utf-8"), re.MULTILINE)
    titles = {path: (index.parent / path).read_text(encoding="utf-8").splitlines()[0] for _, path in rows}
    assert len(rows) > 40
    assert [(title, titles[path]) for title, path in rows if titles[path] != f"# {title}"] == []


def test_make_demo_installs_the_load_of_the_readme() -> None:
    assert "powerprof compare index no-index" in (REPOSITORY / "README.md").read_text(encoding="utf-8")
    packages = (REPOSITORY / ".ci/packages").read_text(encoding="utf-8")
    assert re.search(r"^demo +sysbench ", packages, re.MULTILINE)


def test_no_text_has_the_marks_of_an_unfinished_merge() -> None:
    texts = [path for suffix in ("md", "py", "toml", "c", "h", "yml") for path in tracked(suffix)]
    mark = re.compile(r"^(?:<{7}|>{7}) |^={7}$", re.MULTILINE)
    assert len(texts) > 500
    assert [name_of(path) for path in texts if mark.search(path.read_text("utf-8"))] == []


def tracked(suffix: str) -> list[Path]:
    """Return the files with a suffix in the folders of the repository."""
    folders = ("docs", "monitoring", "packaging", "powerprof", "probes", "tests", "tools", "workloads")
    return [
        *REPOSITORY.glob(f"*.{suffix}"),
        *(path for each in folders for path in (REPOSITORY / each).rglob(f"*.{suffix}")),
    ]
