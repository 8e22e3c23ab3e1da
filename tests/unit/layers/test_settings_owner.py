# SPDX-License-Identifier: Apache-2.0
"""A setting of a server or host that is not ours changes in `reversible/` alone, which restores it."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.unit.layers import sources

_STATEMENT = re.compile(
    r"\bSET\s+(?:GLOBAL|PERSIST)|@@(?:GLOBAL|PERSIST\w*)\.[\w{}]+\s*:?=|\bALTER\s+(?:SYSTEM|DATABASE|ROLE|USER)\b"
    r"|\bALTER\b.*\bEVENT\b|(?<!SHOW )\b(?:CREATE|DROP)\s+(?:OR\s+REPLACE\s+)?EVENT\b"
    r"|\bpg_reload_conf|\bset_config\s*\(",
    re.IGNORECASE | re.DOTALL,
)
_PROGRAM = re.compile(r"sysctl|cpupower|tuned-adm|x86_energy_perf_policy|wrmsr|systemctl|chrt|renice|ionice")
_KERNEL = re.compile(r"^/(?:sys|proc)(?:/|$)|^/dev/cpu(?:/|$)|timerslack_ns|^(?:sysfs|procfs)$")
_WRITING = ("write_text", "write_bytes", "write", "pwrite", "writev", "write_all")
_MODE = re.compile(r"[wax+]")
_FLAGS = re.compile(r"O_(?:WRONLY|RDWR)")
_CALLS = ("sched_setscheduler", "sched_setaffinity", "setpriority", "sched_setparam", "prlimit")

_PRINTED = "printed for a person to type"
# How many places other modules have, at most, and the reason.
ALLOWED: dict[tuple[str, str], tuple[int, str]] = {
    ("statement", "cure/remedies.py"): (1, _PRINTED),
    ("statement", "cure/postgres_settings.py"): (3, _PRINTED),
    ("statement", "diagnosis/rules_threads.py"): (3, _PRINTED),
    ("statement", "diagnosis/rules_replication.py"): (1, _PRINTED),
    ("statement", "diagnosis/wording.py"): (2, _PRINTED),
    ("statement", "report/catalogues.py"): (1, _PRINTED),
    ("statement", "experiment/bench_settings.py"): (1, "the settings of a private server"),
    ("statement", "database/mysql.py"): (1, "the accounts of a private server, when its data are made"),
    ("statement", "database/sql.py"): (1, "a database that powerprof has just made for a workload"),
    ("file", "database/runtree.py"): (1, "IPv6 of the network namespace of a private server"),
    ("file", "system/sandbox.py"): (3, "the identity map and files of a private server's own namespace"),
    ("file", "stacks/drgn_library.py"): (2, "a copy of a library in memory"),
    ("file", "tracing/dtrace_keeper.py"): (1, "takes the breakpoint of DTrace out of the traced program"),
}


def found(source: str) -> Iterator[tuple[str, str]]:
    """The kind and text of every place in a module that can change a setting of a server or of the host."""
    for _, text in sources.strings(source):
        if _STATEMENT.search(text):
            yield "statement", text
        if _PROGRAM.fullmatch(text.rpartition("/")[2]):
            yield "program", text
    for node in sources.walk(source):
        changes = isinstance(node, ast.Call) and _called(node) in _CALLS
        if changes and ast.unparse(node.args[0]) != "0":  # 0 is powerprof itself
            yield "call", ast.unparse(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _reaches_the_kernel(node):
            yield from (("file", ast.unparse(call)) for call in ast.walk(node) if _writes(call))


def _reaches_the_kernel(function: ast.AST) -> bool:
    nodes = list(ast.walk(function))
    words = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    words += [node.id for node in nodes if isinstance(node, ast.Name)]
    words += [node.attr for node in nodes if isinstance(node, ast.Attribute)]
    return any(_KERNEL.search(word) for word in words)


def _called(call: ast.Call) -> str:
    """The last name of a called function; empty for another expression."""
    return getattr(call.func, "attr", "") or getattr(call.func, "id", "")


def _writes(node: ast.AST) -> bool:
    """Whether it is a call that can write to a file."""
    if not isinstance(node, ast.Call):
        return False
    name = _called(node)
    if name == "open":
        rest = " ".join(ast.unparse(one) for one in [*node.args, *(keyword.value for keyword in node.keywords)])
        modes = [one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        return bool(_FLAGS.search(rest)) or any(len(one) < 4 and _MODE.search(one) for one in modes)
    return name in _WRITING


def test_a_setting_changes_in_its_owner_alone() -> None:
    counts: Counter[tuple[str, str]] = Counter()
    for name, source in sources.modules().items():
        if not name.startswith("reversible/"):
            counts.update((kind, name) for kind, _ in found(source))
    assert {place: count for place, count in counts.items() if count > ALLOWED.get(place, (0, ""))[0]} == {}


def test_plain_statements_of_workloads_are_for_private_servers_alone() -> None:
    module = sources.parse(sources.modules()["experiment/bench_settings.py"])
    calls = {
        getattr(part, "name", "")
        for part in module.body
        for node in ast.walk(part)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "_set_global"
    }
    assert calls == {"PrivateSettings"}


def test_the_owner_is_found_by_the_same_search() -> None:
    names = ("variables", "timer_slack")
    kinds = {name: {kind for kind, _ in found(sources.modules()[f"reversible/{name}.py"])} for name in names}
    assert kinds == {"variables": {"statement"}, "timer_slack": {"file"}}


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("statement", 'def f(c, n):\n    sql.execute(c, f"SET GLOBAL {n} = 1")'),
        ("statement", 'c.cursor().execute("set\\n  global sync_binlog=0")'),
        ("statement", 'sql.rows(c, "SET @@global.sync_binlog = 0")'),
        ("statement", 'sql.rows(c, "SET PERSIST_ONLY a = 1")'),
        ("statement", '_TEXT = "ALTER SYSTEM SET fsync = off"'),
        ("statement", 'sql.rows(c, f"ALTER DEFINER = {d} EVENT {n} DISABLE")'),
        ("statement", 'sql.rows(c, "ALTER ROLE app SET work_mem = 1")'),
        ("program", 'programs.run(["/usr/sbin/sysctl", "-w", "vm.swappiness=0"])'),
        ("file", 'def f():\n    (paths.sysfs() / "devices/system/cpu/cpu0/online").write_text("0")'),
        ("file", 'def f():\n    open("/proc/sys/vm/drop_caches", "w").write("3")'),
        ("file", 'def f(t):\n    h = os.open(f"/proc/{t}/timerslack_ns", os.O_WRONLY)\n    os.write(h, b"1")'),
        ("file", 'def f():\n    with Path("/dev/cpu/0/msr").open("r+b") as file:\n        file.write(b"1")'),
        ("call", "os.sched_setaffinity(pid, {0})"),
        ("call", "os.setpriority(os.PRIO_PROCESS, pid, 5)"),
    ],
)
def test_a_planted_change_is_found(kind: str, source: str) -> None:
    assert kind in {kind for kind, _ in found(source)}


@pytest.mark.parametrize(
    "source",
    [
        'def f():\n    """SET GLOBAL is not sent here."""',
        'sql.rows(c, "SHOW GLOBAL VARIABLES")',
        'sql.rows(c, "SHOW CREATE EVENT a.b")',
        'sql.rows(c, "SET SESSION sql_mode = 1")',
        'def f():\n    return (paths.sysfs() / "devices/system/cpu/online").read_text()',
        'def f():\n    with open("/proc/stat", "rb") as file:\n        return file.read()',
        "os.sched_setaffinity(0, {0})",
    ],
)
def test_a_look_is_no_change(source: str) -> None:
    assert list(found(source)) == []
