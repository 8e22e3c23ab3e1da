# SPDX-License-Identifier: Apache-2.0
"""The remedy that a person chooses, and the setting that it changes, with its effects and the way to keep it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from powerprof.cure.postgres_settings import plan_postgres_setting
from powerprof.cure.records import Remedy
from powerprof.cure.slack import command_name_of, read_slack, slack_text
from powerprof.cure.threads import SlackChoice, check_owner, check_slack, find_thread, loop_warning, read_thread_names
from powerprof.database import sql
from powerprof.database.base import Login, StatementError
from powerprof.database.local_login import log_in_as_owner, log_in_locally
from powerprof.diagnosis.evidence import TRIED_RULES
from powerprof.energy.request import DEFAULT_REQUEST, EnergyRequest
from powerprof.experiment.host_settings import UNITS, HostChange, parse_host_setting, plan_host_setting
from powerprof.experiment.options import MOST_PAIRS_FACTOR
from powerprof.model.identities import Family
from powerprof.model.text import parse_time
from powerprof.reversible.groups import join_values
from powerprof.reversible.journal import SavedSetting
from powerprof.reversible.kinds import Setting
from powerprof.reversible.postgres_settings import PostgresSetting
from powerprof.reversible.session_copies import NewConnections, has_session_copies, is_read_only
from powerprof.reversible.timer_slack import TimerSlack, read_start_ticks
from powerprof.reversible.variables import Variable
from powerprof.system.caller import is_delegated
from powerprof.system.cgroups import service_of
from powerprof.system.errors import PowerprofError, UnknownNameError, UsageError
from powerprof.system.foreign_text import whole
from powerprof.system.next_steps import command_line
from powerprof.system.processes import label_of, name_of
from powerprof.system.server_names import is_mysql_program, is_postgres_program
from powerprof.system.targets import word_for

# The default of all threads is 50 µs. With more than this a thread seems dead.
_MAX_SLACK_NS = 10_000_000_000
_GUARD = re.compile(r"p(50|95|99)=([0-9]{1,4}(?:\.[0-9]{1,3})?) ?%?")
_FINDING = re.compile(r"[a-z][a-z_]{0,63}|[1-9][0-9]{0,3}")
_UNKNOWN_VARIABLE = 1193  # ER_UNKNOWN_SYSTEM_VARIABLE
_VARIABLE = re.compile(r"([A-Za-z][A-Za-z0-9_]{0,63}(?:\.[A-Za-z][A-Za-z0-9_]{0,63})?)=(.{0,512})", re.DOTALL)


class VariableChoice(msgspec.Struct, frozen=True):
    """A value for a global variable."""

    name: str
    value: str


class HostChoice(msgspec.Struct, frozen=True):
    """A value for a setting of the host (experiment/host_settings.py)."""

    name: str
    value: str


class FindingChoice(msgspec.Struct, frozen=True):
    """The first live remedy of a finding of `diagnose`, by its rule or its number (from 1)."""

    word: str


Choice = SlackChoice | VariableChoice | HostChoice


class CureRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A remedy to try on a process, and the windows.

    Attributes:
        precision_percent: continue until half of the interval of the answer is this part of the value before.
        server_url: the server to log in to, as `socket` and `defaults_file`.
    """

    pid: str | None
    choice: Choice | FindingChoice | None
    pairs: int
    window_s: float
    seed: int
    max_p95_percent: float = 10.0
    guard_percentile: int = 95
    precision_percent: float | None = None
    server_url: str | None = None
    socket: Path | None = None
    defaults_file: Path | None = None
    energy: EnergyRequest = DEFAULT_REQUEST
    only: bool = False

    def __post_init__(self) -> None:
        if self.precision_percent is not None and not 0 < self.precision_percent < 100:
            raise UsageError(f"--precision {self.precision_percent:g}: must be between 0 and 100 %", "such as 2%")

    @property
    def most_pairs(self) -> int:
        """The number of pairs after which `--precision` ends."""
        return self.pairs if self.precision_percent is None else self.pairs * MOST_PAIRS_FACTOR

    @property
    def names_server(self) -> bool:
        """Whether the request has an account or an address of a server."""
        return any(part is not None for part in (self.server_url, self.socket, self.defaults_file))


def parse_choice(
    thread: str | None, slack: str | None, variable: str | None, finding: str | None = None, host: str | None = None
) -> SlackChoice | VariableChoice | FindingChoice | HostChoice | None:
    """Return the remedy of the options; None without a remedy. Raise UsageError."""
    given = {"--host": host, "--finding": finding, "--set": variable, "--thread": thread or slack}
    first, *others = [name for name, value in given.items() if value is not None] or [""]
    if others:
        raise UsageError(
            f"{first} and {others[0]} exclude each other: each chooses a remedy", "try one after the other"
        )
    if host is not None:
        return HostChoice(*parse_host_setting(host))
    if finding is not None:
        return _parse_finding(finding)
    if variable is not None:
        return _parse_variable(variable)
    if thread is None and slack is None:
        return None
    if thread is None:
        raise UsageError("--slack needs a thread", "--thread NAME, or a thread id")
    if slack is None:
        raise UsageError("--thread needs --slack", "--slack 50ms")
    if not thread.strip() or len(thread) > 128 or not thread.isprintable():
        raise UsageError("--thread needs the name or id of a thread", "ps -L -o tid,comm -p PID lists them")
    return SlackChoice(thread.strip(), parse_slack(slack))


def parse_guard(text: str) -> tuple[int, float]:
    """Return `p99=5%` as 99 and 5.0. Raise UsageError."""
    match = _GUARD.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"--guard {text[:40]!r} is not a percentile and a limit", "such as --guard p99=5%")
    return int(match[1]), float(match[2])


def parse_slack(text: str) -> int:
    """Return `50ms` in ns. Raise UsageError."""
    try:
        value = round(parse_time(text) * 1e9)
    except ValueError as error:
        raise UsageError(f"--slack {text[:40]}: {error}", "such as --slack 50ms") from None
    if not 1 <= value <= _MAX_SLACK_NS:
        raise UsageError(f"--slack {text[:40]} is not between 1 ns and 10 s", "the default of all threads is 50us")
    return value


def _parse_finding(text: str) -> FindingChoice:
    if not _FINDING.fullmatch(text):
        raise UsageError(
            f"--finding {text[:60]!r} is neither a rule nor a number",
            f"to list them: {command_line('cure', same_target=True)}",
        )
    if whole(text) is None and text not in TRIED_RULES:
        raise UnknownNameError(
            f"--finding: no finding {text!r} can be tried on a live server",
            text,
            TRIED_RULES,
            f"{', '.join(TRIED_RULES)}; to list the present ones: {command_line('cure', same_target=True)}",
        )
    return FindingChoice(text)


def _parse_variable(text: str) -> VariableChoice:
    match = _VARIABLE.fullmatch(text)
    if match is None or not match[2].isprintable():
        raise UsageError(f"--set {text[:60]!r} is not VARIABLE=VALUE", "for example --set sync_binlog=0")
    return VariableChoice(match[1], match[2])


class PlannedChange(msgspec.Struct, frozen=True):
    """A setting that is to be changed.

    Attributes:
        saved: its entry in the journal; a setting of the host can have one per file.
        connections: the connections that copy the variable during the change; None if connections do not copy it.
    """

    saved: list[SavedSetting]
    remedy: Remedy
    connections: NewConnections | None = None

    @property
    def settings(self) -> list[Setting]:
        """The setting, per file."""
        return [each.setting for each in self.saved]

    @property
    def befores(self) -> list[str]:
        """The present value, per file."""
        return [each.before for each in self.saved]

    @property
    def value(self) -> str:
        """The new value."""
        return self.saved[0].setting.value

    @property
    def primary_metric(self) -> str:
        """The metric that answers whether the remedy helps."""
        if self.remedy.kind == "host":
            return "c0_percent"
        return "target_wakings_hz" if self.remedy.thread is None else "thread_wakings_hz"


def plan_change(pid: int, request: CureRequest) -> PlannedChange:
    """Return the planned change, before it is made. Raise UsageError, CapabilityError, PowerprofError."""
    check_owner(pid)
    started = read_start_ticks(pid)
    if started is None:
        raise PowerprofError(f"process {pid} has ended", "choose a running process")
    settings: Sequence[Setting]
    connections = None
    if isinstance(request.choice, SlackChoice):
        setting, before, remedy = _plan_slack(pid, request, request.choice)
        settings, befores = [setting], [before]
    elif isinstance(request.choice, HostChoice):
        change = plan_host_setting(request.choice.name, request.choice.value)
        settings, befores, remedy = change.settings, change.befores, _host_remedy(request.choice.name, change)
    else:
        assert isinstance(request.choice, VariableChoice)  # noqa: S101  a plan needs a choice
        variable, before, remedy = _plan_server_setting(pid, request, request.choice)
        settings, befores = [variable], [before]
        if isinstance(variable, Variable) and variable.keeps_copies:
            connections = NewConnections(Login.from_fields(variable.login))
    options = None if request.defaults_file is None else str(request.defaults_file.absolute())
    saved = [SavedSetting(each, old, pid, started, options) for each, old in zip(settings, befores, strict=True)]
    return PlannedChange(saved, remedy, connections)


def _host_remedy(name: str, change: HostChange) -> Remedy:
    unit, before = UNITS.get(name, ""), join_values(change.befores)
    more = ", and the profile's settings of memory, disks and network" if name == "profile" else ""
    return Remedy(
        kind="host",
        name=change.name,
        from_value=f"{before}{unit if before.isdigit() else ''}",
        to_value=f"{change.value}{unit if change.value.isdigit() else ''}",
        lasting=change.lasting,
        delays=f"all programs of this host{more}",
    )


def _plan_slack(pid: int, request: CureRequest, choice: SlackChoice) -> tuple[TimerSlack, str, Remedy]:
    thread = find_thread(pid, choice.thread, _read_thread_names(pid, request))
    check_slack(pid, thread)
    setting, before = read_slack(thread, choice.slack_ns)
    slack = slack_text(choice.slack_ns)
    warning = loop_warning(pid, thread)
    unit = service_of(pid)
    follow = "; --print unit prints a service that sets it at each start" if unit is not None else ""
    word = word_for(pid)
    each = "after each start, with the new process id" if word.isdigit() else "after each start"
    command = command_line("cure --pid {} --thread {} --slack {} --keep", word, command_name_of(pid, thread), slack)
    remedy = Remedy(
        kind="timer_slack",
        name=f"timer slack of {thread.label} (thread {thread.tid})",
        thread=thread,
        from_value=before,
        to_value=setting.value,
        lasting=f"{each}: {command} (timer slack ends with its thread{follow}). "
        f"Or in a drop-in of {unit or 'the unit that starts it'}: [Service] TimerSlackNSec={slack}, "
        "which delays all timeouts of the server "
        f"by at most {slack}, including those of connections",
        delays=f"every timeout of this one thread, by at most {slack}" + (f" ({warning})" if warning else ""),
    )
    return setting, before, remedy


def _read_thread_names(pid: int, request: CureRequest) -> Mapping[int, str]:
    if not request.names_server:
        return read_thread_names(pid)
    from powerprof.database.given import given_server

    with given_server(request.server_url, request.socket, request.defaults_file) as server:
        return read_thread_names(pid, server.thread_names())


def _plan_server_setting(
    pid: int, request: CureRequest, choice: VariableChoice
) -> tuple[Variable | PostgresSetting, str, Remedy]:
    if _family_of(pid) == "mysql":
        return _plan_variable(pid, request, choice)
    return plan_postgres_setting(pid, _find_login(pid, request, "postgresql"), choice.name, choice.value)


def _family_of(pid: int) -> Family:
    """Return the family of a server's process. Raise UsageError for other programs, which have no settings."""
    program = name_of(pid)
    if is_postgres_program(program):
        return "postgresql"
    if is_mysql_program(program):
        return "mysql"
    raise UsageError(
        f"--set: {label_of(pid)} ({pid}) is not a MariaDB, MySQL or PostgreSQL server, so it has no settings",
        "--thread NAME --slack TIME",
    )


def _plan_variable(pid: int, request: CureRequest, choice: VariableChoice) -> tuple[Variable, str, Remedy]:
    login = _find_login(pid, request, "mysql")
    setting = Variable(login.to_fields(), choice.name, choice.value, pid, read_start_ticks(pid))
    try:
        before = setting.read()
    except StatementError as error:
        if error.number != _UNKNOWN_VARIABLE:
            raise
        raise UsageError(
            f"--set {choice.name}: this server has no global variable of this name", "SHOW GLOBAL VARIABLES lists them"
        ) from error
    if before is None:
        raise PowerprofError(f"cannot read {choice.name}", "SHOW GLOBAL VARIABLES lists them")
    setting.check_type(before)
    with sql.connect(login, limits=sql.WORD_LIMITS) as connection:
        if is_read_only(connection, choice.name):
            raise UsageError(
                f"--set {choice.name}: a running server cannot change it",
                "some can be set in my.cnf, for the next start",
            )
        is_copied = has_session_copies(connection, choice.name)
    delays = "the whole server and all its clients, during the change"
    if is_copied:
        delays += f"; connections opened during the change keep {choice.value} until they end"
    remedy = Remedy(
        kind="variable",
        name=choice.name,
        from_value=before,
        to_value=choice.value,
        lasting=f"in my.cnf under [mysqld]: {choice.name} = {choice.value}",
        delays=delays,
    )
    # `cli.cure` asks for consent to the copies before anything is changed.
    return msgspec.structs.replace(setting, keeps_copies=is_copied), before, remedy


def _find_login(pid: int, request: CureRequest, family: Family) -> Login:
    """Return the login with the named account, or else by the server's own socket. Raise UsageError, PowerprofError."""
    if request.names_server:
        from powerprof.database.given import given_server

        with given_server(request.server_url, request.socket, request.defaults_file, families=(family,)) as server:
            if server.pid != pid:
                raise UsageError(
                    f"--pid is {pid}, but the named server is "
                    + ("on another host" if server.pid is None else f"process {server.pid}"),
                    "name the same server",
                )
            return server.login
    if is_delegated():
        raise UsageError(
            "under sudo, cure changes a server only with an account of the caller, but no account is named",
            "--socket PATH, --server URL or --defaults-file FILE; or run as root itself",
        )
    entered = log_in_as_owner(pid, sql.LOOK_LIMITS) if family == "postgresql" else None
    entered = entered or log_in_locally(pid, sql.LOOK_LIMITS, family)
    if entered is None:
        remedy = "with --defaults-file" if family == "mysql" else "with --server USER@SOCKET"
        raise PowerprofError(f"server {pid} refuses this user on its socket", f"name an account {remedy}")
    entered[1].close()
    return entered[0]
