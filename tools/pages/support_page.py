# SPDX-License-Identifier: Apache-2.0
"""Writes the table of commands in docs/support.md: `python -m tools.pages.support_page`.

Each cell names the test that proves it, or the reason for its absence. A proof is the name of a test function with its
file, or of a step of an emulated machine (`machine CELL STEP`, docs/dev/machines.jsonl).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from tests.conftest import REPOSITORY

PAGE = REPOSITORY / "docs/support.md"
COMMAND = "python -m tools.pages.support_page"
BEGIN, END = "<!-- table of commands: written by tools.pages.support_page -->", "<!-- table of commands: end -->"
PRODUCTS = ("MariaDB", "MySQL", "PostgreSQL", "any process")
ARCHITECTURES = ("x86-64", "arm64")
PROVEN = "✓"
# The letter of a cell without a proof, and the reason.
REASONS = {
    "a": "The command has no server: its target is a process, the host or saved runs.",
    "b": "Only a database server has this.",
    "c": "Not done yet: the probes and samples read registers of x86-64.",
    "d": "Not tested on arm64 yet. The code is that of x86-64.",
    "e": "Not tested with this server yet. The code is that of other servers and processes.",
    "f": "Not done yet: texts often have parameters without values, and powerprof creates no account that only reads.",
    "g": "Not done yet: no study of this server.",
}

_ENDED = "errors/test_ended_targets.py::test_more_commands_say_that_their_target_ended"
_POSTGRES = "queries/test_postgres_plans.py::test_the_command_shows_generic_plans"
_GIVEN = "experiment/test_given_postgresql.py::test_workloads_leave_nothing_on_the_server"
_REPLICAS = "cure/test_cure_replicas.py::test_replicas_of_other_releases_are_measured"


@dataclass(frozen=True)
class Row:
    """A command: the kernel, and for each product the proofs or letters on x86-64 and arm64."""

    command: str
    kernel: str
    mariadb: tuple[str, str] = ("a", "a")
    mysql: tuple[str, str] = ("a", "a")
    postgresql: tuple[str, str] = ("a", "a")
    process: tuple[str, str] = ("b", "b")
    cells: tuple[tuple[str, str], ...] = field(init=False)

    def __post_init__(self) -> None:
        """Put the cells into the order of `PRODUCTS`."""
        object.__setattr__(self, "cells", (self.mariadb, self.mysql, self.postgresql, self.process))


_TRACING = "5.10 and newer"
_ANY = "any"
_STUDY = "experiment/test_studies.py::test_a_buffer_above_the_threshold_is_faulted_in_for_every_connection"
ROWS = (
    Row("`doctor`", _ANY, process=("machine bookworm doctor", "machine arm64 doctor")),
    Row("`report`, `runs`", _ANY, process=("report/test_files.py::test_every_kind_of_file_in_one_command", "d")),
    Row(
        "`servers`",
        _ANY,
        mariadb=("replication/test_servers_command.py::test_the_list_shows_servers_and_licences", "d"),
        mysql=("replication/test_mysql_5_5_9.py::test_replicas_with_one_id_storm_until_one_gets_another", "d"),
        postgresql=(
            "database/test_releases.py::test_a_release_is_fetched_and_runs_with_its_own_libraries_as_nobody_special",
            "d",
        ),
    ),
    Row(
        "`residency`",
        "any with cpuidle or `/proc/stat`",
        process=("residency/test_residency.py::test_this_host_in_json", "d"),
    ),
    Row("`energy`", _ANY, process=("energy/test_energy_command.py::test_a_counter_that_moves_is_measured", "d")),
    Row(
        "`attribute`",
        _TRACING,
        mariadb=(
            "attribution/test_servers.py::test_mariadb_threads_have_names_periods_and_stacks_of_perf",
            "machine arm64 idle",
        ),
        mysql=("e", "d"),
        postgresql=("attribution/test_servers.py::test_postgresql_redis_and_nginx_are_found_by_name", "d"),
        process=(
            "attribution/test_ground_truth.py::test_c_functions_have_their_rates_and_origins",
            "machine arm64 attribute",
        ),
    ),
    Row(
        "`deep-idle`",
        _TRACING,
        (_ENDED, "d"),
        ("e", "d"),
        (_ENDED, "d"),
        ("attribution/test_deep_idle.py::test_every_period_of_a_window_is_in_the_answer", "d"),
    ),
    Row(
        "`watch`",
        _TRACING,
        mariadb=("queries/test_queries_command.py::test_watch_goes_on_when_the_server_comes_back", "d"),
        mysql=("e", "d"),
        postgresql=(
            "queries/test_queries_postgres_command.py::test_windows_follow_each_other_and_stacks_are_told_by_statement",
            "d",
        ),
        process=("live/test_watch.py::test_the_rows_of_a_document_sum_to_its_exits", "d"),
    ),
    Row(
        "`export`",
        _TRACING,
        mariadb=("live/test_export.py::test_the_statements_sum_to_the_server_also_after_a_restart", "d"),
        mysql=("e", "d"),
        postgresql=("queries/test_hostile_databases.py::test_watch_and_export_execute_nothing_of_a_database", "d"),
        process=("live/test_export.py::test_all_series_sum_to_the_kernels_count", "d"),
    ),
    Row(
        "`offcpu`",
        _TRACING,
        (_ENDED, "d"),
        ("e", "d"),
        (_ENDED, "d"),
        ("tracing/test_offcpu.py::test_sleeps_waits_and_wakers_are_the_programs_own", "d"),
    ),
    Row(
        "`syscalls`",
        "5.10 and newer; io_uring from 6.3",
        (_ENDED, "d"),
        ("e", "d"),
        (_ENDED, "d"),
        ("tracing/test_syscalls.py::test_calls_bytes_and_waits_are_the_programs_own", "d"),
    ),
    Row(
        "`profile`",
        "5.15 and newer",
        (_ENDED, "c"),
        ("e", "c"),
        (_ENDED, "c"),
        ("tracing/test_oncpu.py::test_cpu_time_falls_to_the_functions_that_use_it", "c"),
    ),
    Row(
        "`functions`",
        "5.15 and newer",
        (_ENDED, "c"),
        ("e", "c"),
        (_ENDED, "c"),
        ("tracing/test_functions.py::test_calls_are_exact_and_self_times_are_the_functions_own", "c"),
    ),
    Row(
        "`queries`, probes",
        _TRACING,
        mariadb=("queries/test_queries_command.py::test_the_command_says_that_it_adds_up", "c"),
        mysql=("queries/test_queries_shapes.py::test_every_shape_has_its_share_on_other_releases", "c"),
        postgresql=(
            "queries/test_queries_postgres_command.py::test_the_command_says_that_it_adds_up_whichever_process_is_named",
            "c",
        ),
    ),
    Row(
        "`queries`, samples",
        _TRACING,
        mariadb=("queries/test_queries_samples.py::test_the_command_says_what_samples_tell", "machine arm64 queries"),
        mysql=("queries/test_queries_samples.py::test_other_releases_are_told_too", "d"),
        postgresql=("queries/test_queries_samples_postgres.py::test_the_command_says_what_samples_tell", "d"),
    ),
    Row(
        "`queries --explain`",
        _TRACING,
        mariadb=("queries/test_queries_command.py::test_plans_and_a_workload_are_made_of_what_clients_sent", "d"),
        mysql=("safety/test_readers.py::test_mysql_gives_such_an_account_and_plans_by_it", "d"),
        postgresql=(_POSTGRES, "d"),
    ),
    Row(
        "`queries --save-workload`",
        _TRACING,
        mariadb=("queries/test_queries_command.py::test_plans_and_a_workload_are_made_of_what_clients_sent", "d"),
        mysql=("e", "d"),
        postgresql=("f", "f"),
    ),
    Row(
        "`diagnose`",
        "as `attribute`; without tracing any",
        mariadb=("diagnosis/test_diagnose_faults.py::test_each_fault_is_named", "d"),
        mysql=("diagnosis/test_diagnose_faults.py::test_each_fault_is_named_on_other_releases", "d"),
        postgresql=("diagnosis/test_postgres_faults.py::test_each_fault_is_named_with_evidence_and_remedy", "d"),
        process=("diagnosis/test_diagnose_faults.py::test_redis_is_told_which_setting_wakes_it", "d"),
    ),
    Row(
        "`cure --slack`",
        _TRACING,
        *[("e", "d")] * 3,
        ("cure/test_cure.py::test_cure_measures_savings_as_predicted_and_restores_the_slack", "d"),
    ),
    Row("`cure --host`", _TRACING, process=("machine 6.12-deep killed", "d")),
    Row(
        "`cure --set`",
        _TRACING,
        ("cure/test_cure.py::test_cure_of_a_variable", "d"),
        (_REPLICAS, "d"),
        ("cure/test_cure_postgresql.py::test_the_file_is_as_before", "d"),
    ),
    Row(
        "`idle`",
        "any; causes as `attribute`",
        mariadb=("idle/test_clients.py::test_a_server_of_the_users", "machine arm64 idle"),
        mysql=("e", "d"),
        postgresql=(
            "idle/test_postgresql.py::test_a_postgresql_of_the_users_is_measured_and_refused_while_it_works",
            "d",
        ),
    ),
    Row(
        "`run`, `compare`, `sweep`",
        _ANY,
        mariadb=("experiment/test_compare.py::test_no_index_costs_many_times_more_than_index", "d"),
        mysql=("e", "d"),
        postgresql=(_GIVEN, "d"),
        process=("experiment/test_commands.py::test_the_more_expensive_of_two_commands_is_found", "d"),
    ),
    Row(
        "`study`, `workloads`",
        _ANY,
        (_STUDY, "d"),
        ("replication/test_mysql_5_5_9.py::test_replicas_with_one_id_storm_until_one_gets_another", "d"),
        ("g", "g"),
    ),
)


def is_proof(cell: str) -> bool:
    """Return whether a cell names a proof, not a reason."""
    return cell not in REASONS


def find_proof(cell: str) -> bool:
    """Return whether the test or step of a proof exists, and the step succeeded."""
    if cell.startswith("machine "):
        _, machine, step = cell.split()
        records = map(json.loads, (REPOSITORY / "docs/dev/machines.jsonl").read_text("utf-8").splitlines())
        steps = [each for record in records if record["cell"] == machine for each in record["steps"]]
        return any(each["step"] == step and each["ok"] for each in steps)
    path, _, name = cell.partition("::")
    text = (REPOSITORY / "tests/system" / path).read_text("utf-8")
    return re.search(rf"^def {name}\(", text, re.MULTILINE) is not None


def render() -> str:
    """Return the text between the marks, with them."""
    lines = [
        BEGIN,
        f"| command | kernel | {' | '.join(PRODUCTS)} |",
        "|---" * (2 + len(PRODUCTS)) + "|",
        *(f"| {row.command} | {row.kernel} | {' | '.join(_draw(cell) for cell in row.cells)} |" for row in ROWS),
        "",
        f"Each cell has {' and '.join(ARCHITECTURES)}, in this order. {PROVEN}: a test with real parts covers it.",
        "",
        *(f"- **{letter}** {reason}" for letter, reason in REASONS.items()),
        END,
    ]
    return "\n".join(lines)


def _draw(cell: tuple[str, str]) -> str:
    shown = [PROVEN if is_proof(each) else each for each in cell]
    return shown[0] if shown[0] == shown[1] else " / ".join(shown)


def text_of(page: str) -> str:
    """Return the page with its table."""
    return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: render(), page, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(text_of(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
