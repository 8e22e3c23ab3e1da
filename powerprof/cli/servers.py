# SPDX-License-Identifier: Apache-2.0
"""List and download servers of other releases, and Java connectors.

`list` shows the available servers, `fetch NAME` downloads one: releases of MySQL and packages of Debian, unpacked with
their libraries into a separate root. Nothing is installed. Each download is verified and cached, and runs only with
private data. `remove NAME` deletes it. `idle`, `run`, `compare` and `sweep` start it with --server-build NAME.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from powerprof.cli.options import CommandOptions
from powerprof.cli.output import write_json
from powerprof.cli.outputs import check_targets, json_file, json_output
from powerprof.cli.parameters import argument, flag, program_value
from powerprof.cli.terminal import ask_consent, confirm, print_progress, print_report
from powerprof.system.errors import MissingArgumentError, UnknownNameError, UsageError
from powerprof.system.next_steps import command_line

if TYPE_CHECKING:
    from powerprof.database.catalogue import Fetchable


_ACTIONS = ("list", "fetch", "remove")


class Options(CommandOptions, frozen=True, kw_only=True):
    """The options of `servers`."""

    action: str = argument("[ACTION]", "Action: list, fetch or remove.", default="list")
    name: str | None = argument("[NAME]", "Server to fetch or remove, such as mariadb-11.8.")
    yes: bool = flag("--yes", "Do not ask for confirmation.")
    json: str | None = json_file()
    quiet: bool = program_value("quiet", False)

    def check(self) -> None:
        """Raise UsageError for an unknown action, and for a name that it lacks or does not take."""
        if self.action not in _ACTIONS:
            raise UnknownNameError(
                f"servers {self.action} is not an action", self.action, _ACTIONS, "list, fetch or remove"
            )
        if self.action == "list" and self.name is not None:
            raise UsageError("list takes no name", f"to download it: {command_line('servers fetch {}', self.name)}")
        if self.action == "list" and self.yes:
            raise UsageError("--yes has no effect on list", command_line("servers fetch NAME --yes"))
        if self.action != "list" and self.name is None:
            raise MissingArgumentError(f"{self.action} needs a name", "mariadb-11.8", command_line("servers list"))


def command(options: Options) -> None:
    """List the servers and connectors, or fetch or remove one."""
    action, name, yes, json, quiet = options.action, str(options.name), options.yes, options.json, options.quiet
    check_targets(json_output(json))
    entries: list[Fetchable] = []
    from powerprof.database import catalogue
    from powerprof.report.catalogues import fetched_lines, server_lines, server_record

    if action == "list":
        entries = list(catalogue.load_catalogue().values())
        lines = server_lines(entries)
    elif action == "remove":
        entries = [catalogue.find_entry(name)]
        place = catalogue.find_fetched(entries[0])
        if not yes:
            confirm(f"Delete {place}?", without_terminal="add --yes", declined=f"{name} was kept")
        catalogue.remove_fetched(entries[0])
        lines = [f"{name} was removed. To fetch it again: {command_line('servers fetch {}', name)}"]
    else:
        entries = [catalogue.find_entry(name)]
        state = "is already fetched" if entries[0].is_fetched else "fetched, checked and started once"
        catalogue.fetch_entry(
            entries[0], lambda question: ask_consent(question, yes), lambda text: print_progress(text, quiet)
        )
        lines = fetched_lines(entries[0], state)
    record = {
        "schema": "powerprof.servers/1",
        "servers": [server_record(entry) for entry in entries if entry.scheme is None],
        "connectors": [server_record(entry) for entry in entries if entry.scheme is not None],
    }
    write_json(record, json)
    if json != "-" and not quiet:
        print_report(lines)
