# SPDX-License-Identifier: Apache-2.0
"""Every option that a text of the product names exists on the command that prints it.

A text that names its command (`powerprof idle --quick`) is held against that command. Any other is held against the
commands that can reach its module by imports, and those of a command's own modules against it alone.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.unit.layers import sources
from tests.unit.layers.imports import Graph, graph_of
from tools.pages.cli import commands
from tools.pages.pages import name_of, pages

PACKAGE = REPOSITORY / "powerprof"
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
# A command and what belongs to it: up to the end of the clause, and not past another command.
_COMMAND_LINE = re.compile(r"powerprof (?P<name>[a-z]+)\b(?P<rest>(?:(?!powerprof )[^;:)])*)")
_EVERYWHERE = {"--help", "--version", "--debug", "--quiet", "--runs-dir"}
# Options of what powerprof was, printed with what took their place.
_GONE = {"--functions", "--wakers", "--sleeps", "--enable-consumers", "--speedscope", "--parquet"}
_POWERTOP = {"--csv", "--time"}
_TURBOSTAT = {"--quiet", "--show", "--hide", "--cpu", "--interval", "--num_iterations", "--enable", "--out", "--num"}
# Options of other programs: the words that programs of ours and theirs are started with, and remedies.
_OTHERS = {
    "database/": None,  # the words of servers and their clients
    "experiment/mariadb_slap.py": None,
    "experiment/pgbench.py": None,
    "experiment/sysbench.py": None,
    "experiment/sysbench_gate.py": None,
    "measure/powertop.py": _POWERTOP,
    "measure/powertop_residency.py": _POWERTOP,
    "measure/turbostat.py": _TURBOSTAT,
    "measure/turbostat_residency.py": _TURBOSTAT,
    "energy/meters/ipmi.py": {"--get-system-power-statistics"},  # of ipmi-dcmi
    "energy/meters/turbostat.py": _TURBOSTAT,
    "energy/replay.py": _TURBOSTAT,
    "host/program_probes.py": {"--quiet", "--num", "--interval"},
    "host/": {"--cap-add", "--pid", "--privileged"},
    "system/open_files.py": {"--pid", "--nofile", "--ulimit"},  # of prlimit and docker
    "system/pid_namespaces.py": {"--pid", "--fork", "--mount-proc"},
    "cli/app.py": {"--install-completion"},  # of the parser
    "cli/synonyms.py": None,
    "live/webconfig.py": {"--web"},
    "report/comparison_words.py": {"--pairs"},  # of `compare`, printed by `report` too
    "report/queries.py": {"--method"},  # of `queries`, printed by `report` too
    "report/": {"--contents--", "--w", "--x", "--d"},  # variables of style sheets
    "report/notes.py": None,  # how other runtimes are started so that their functions have names
    "stacks/runtimes.py": {"--reuid", "--regid", "--clear-groups"},
}
# Options of other programs in the pages' prose.
_OTHERS_IN_PAGES = {
    "--cgroupns",
    "--security-opt",
    "--init-file",
    "--no-defaults",
    "--enable-dtrace",
    "--perf-basic-prof",
    "--install-completion",
    *("--show", "--hide", "--cpu"),  # of turbostat
}
# Lists of command lines and of options, whose texts are of no one command.
_LISTS = {"cli/app.py", "cli/options.py", "cli/idle.py", "cli/queries.py", "report/cure.py", "workloads/studies.py"}
# Who prints the tables: their hints are for these alone.
_TABLES = {
    "attribution": ("attribute", "report"),
    "functions": ("functions", "report"),
    "offcpu": ("offcpu", "report"),
    "profile": ("profile", "report"),
    "queries": ("queries", "report"),
    "comparison": ("compare", "report"),
    "sweep_comparison": ("compare", "report"),
    "sweep": ("sweep", "report"),
}


_STEPS = {"command_line", "documented"}


@cache
def options() -> dict[str, frozenset[str]]:
    """Command → its options."""
    return {name: frozenset(one.name for one in command.options) | _EVERYWHERE for name, command in commands().items()}


@cache
def texts() -> tuple[tuple[str, int, str], ...]:
    """Return path, line and text of every text; the words of a printed command follow the program's name."""
    found = []
    for path, source in sources.modules().items():
        calls = (node for node in sources.walk(source) if isinstance(node, ast.Call) and node.args)
        steps = {ast.unparse(node.args[0]) for node in calls if getattr(node.func, "id", "") in _STEPS}
        for line, text in sources.strings(source):
            found.append((path, line, f"powerprof {text.replace(':', '')}" if repr(text) in steps else text))
    return tuple(found)


@cache
def _imported_by(path: str) -> frozenset[str]:
    """The modules that a module imports, as paths within the package."""
    modules = _graph().get(path.removesuffix(".py").replace("/", "."), frozenset())
    return frozenset(f"{name.replace('.', '/')}.py" for name in modules)


@cache
def _graph() -> Graph:
    return graph_of(REPOSITORY / "powerprof")


@cache
def _reached(start: str) -> frozenset[str]:
    """The modules that a command's module imports, itself or by others."""
    seen, left = {start}, [start]
    while left:
        new = _imported_by(left.pop()) - seen
        seen |= new
        left += new
    return frozenset(seen)


def _printed_by(path: str) -> tuple[str, ...]:
    stem = Path(path).stem.replace("_", "-") if path.startswith("cli/") else Path(path).stem
    if path.startswith("cli/") and stem in options():
        return (stem,)
    if path == f"report/{stem}.py" and stem in _TABLES:
        return _TABLES[stem]
    return ()


def _is_anothers(path: str, option: str) -> bool:
    return any(path.startswith(place) and (known is None or option in known) for place, known in _OTHERS.items())


def problems_of(text: str, path: str) -> list[str]:
    """The options in a text of a module that no command could be meant by."""
    wrong = []
    if path in _LISTS and text.partition(" ")[0] in options():
        text = f"powerprof {text}"
    rest = text
    for match in _COMMAND_LINE.finditer(text):
        if match["name"] in options():
            # What a user's own command after -- takes is theirs.
            words = match["rest"].split(" -- ")[0]
            found = set(_OPTION.findall(words))
            wrong += [f"{match['name']} has no {option}" for option in sorted(found - options()[match["name"]])]
            rest = rest.replace(match[0], " ", 1)
    owners = _printed_by(path)
    # `compare` in a sentence says whose option it is.
    meant = frozenset().union(*(options()[name] for name in re.findall(r"`([a-z]+)`", text) if name in options()))
    reaching = [
        name for name in options() if owners == () and path in _reached(f"cli/{name.replace('-', '_')}.py")
    ] or list(options())
    if path in _LISTS:
        reaching = list(options())
    for option in sorted(set(_OPTION.findall(rest)) - _GONE - meant):
        if _is_anothers(path, option):
            continue
        if owners:
            wrong += [f"{name} has no {option}" for name in owners if option not in options()[name]]
        elif not any(option in options()[name] for name in reaching):
            wrong.append(f"none of {', '.join(reaching)} has {option}")
    return wrong


def test_options_in_texts_of_the_product_exist() -> None:
    """Many are found, so the finder has not gone blind."""
    named = [(path, line, text) for path, line, text in texts() if "--" in text]
    wrong = [f"{path}:{line}: {text!r}: {what}" for path, line, text in named for what in problems_of(text, path)]
    assert wrong == []
    assert sum(len(_OPTION.findall(text)) for _, _, text in named) > 300


def test_no_hint_promises_a_prompt_or_gives_rights_to_the_interpreter() -> None:
    """powerprof never asks for a password, and file capabilities of the interpreter apply to every Python program."""
    promise = re.compile(r"\bthe prompt\b|powerprof asks? for|let powerprof ask|setcap")
    assert [f"{path}:{line}: {text!r}" for path, line, text in texts() if promise.search(text)] == []


@pytest.mark.parametrize(
    ("text", "path", "said"),
    [
        ("add --nosuch", "cli/idle.py", ["idle has no --nosuch"]),
        ("powerprof idle --pairs 3", "model/runs.py", ["idle has no --pairs"]),
        ("powerprof idle --quick; or --pairs 3", "cli/compare.py", []),
        ("3 more (--all)", "report/queries.py", ["queries has no --all"]),
        ("powerprof run -- gzip --best", "cli/idle.py", []),
    ],
)
def test_a_wrong_one_would_be_found(text: str, path: str, said: list[str]) -> None:
    assert problems_of(text, path) == said


def test_options_in_pages_exist() -> None:
    """In prose, between backticks; the blocks of commands are read by test_pages.py."""
    known = frozenset().union(*options().values()) | _GONE | _OTHERS_IN_PAGES
    wrong = {}
    for page in pages():
        prose = re.sub(r"^(?: {4}|```).*$", "", page.read_text(), flags=re.MULTILINE)
        wrong[name_of(page)] = set(re.findall(r"`(--[a-z][a-z0-9-]*)[^`]*`", prose)) - known
    assert {page: options for page, options in wrong.items() if options} == {}


def test_an_option_in_a_row_of_commands_belongs_to_each_of_them() -> None:
    """`queries --stacks` names the command of its option; `--stacks` alone is an option of all commands of the row."""
    wrong, rows = [], 0
    for page in pages():
        for row in re.findall(r"^\|(.+)\|$", page.read_text("utf-8"), re.MULTILINE):
            first, *cells = re.split(r"(?<!\\)\|", row)
            words = [code.split()[0] for code in re.findall(r"`([^`]+)`", first)]
            if words and options().keys() >= set(words):
                named = re.findall(r"`(--[a-z][a-z-]*)[^`]*`", "|".join(cells))
                rows += bool(named)
                wrong += [(name_of(page), word, one) for word in words for one in named if one not in options()[word]]
    assert wrong == []
    assert rows >= 5
