# SPDX-License-Identifier: Apache-2.0
"""The plan for a setting of PostgreSQL: which settings can be tried on a live server, and their effects."""

from __future__ import annotations

from powerprof.cure.records import Remedy
from powerprof.database import sql
from powerprof.database.base import Login
from powerprof.database.postgres_settings import (
    ServerSetting,
    find_unloaded_file,
    list_hiding,
    list_setting_names,
    read_setting,
    without_limits,
)
from powerprof.reversible.postgres_settings import UNSET, DataFolder, PostgresSetting
from powerprof.system.errors import PowerprofError, UnknownNameError, UsageError

_MAX_SHOWN = 4
# Values of these are lists of quoted names (GUC_LIST_QUOTE), which ALTER SYSTEM does not keep as one text.
_LISTS = frozenset(("local_preload_libraries", "search_path", "session_preload_libraries", "temp_tablespaces"))
# No file can set these (GUC_DISALLOW_IN_FILE).
_OF_SESSIONS = frozenset(
    (
        "role",
        "seed",
        "session_authorization",
        "transaction_deferrable",
        "transaction_isolation",
        "transaction_read_only",
    )
)


def plan_postgres_setting(pid: int, login: Login, name: str, value: str) -> tuple[PostgresSetting, str, Remedy]:
    """Return the setting, its value in postgresql.auto.conf and the remedy. Raise UsageError, PowerprofError."""
    with sql.connect(login, limits=sql.WORD_LIMITS) as connection:
        login = without_limits(connection, login)
    with sql.connect(login, limits=sql.WORD_LIMITS) as connection:
        server_setting = read_setting(connection, name)
        if server_setting is None:
            names = list_setting_names(connection)
            raise UnknownNameError(
                f"--set {name}: this server has no setting of this name", name, names, "SHOW ALL lists them"
            )
        _check_context(server_setting, value)
        if unloaded := find_unloaded_file(connection):
            raise UsageError(
                f"--set {name}: {unloaded} changed after the server loaded it, and the change would take effect",
                "run SELECT pg_reload_conf(), or undo the change of the file",
            )
        hiding = list_hiding(connection, name)
    folder = DataFolder.of(pid)
    if folder is None:
        raise PowerprofError(f"cannot read the data folder of server {pid}", "run as root")
    setting = PostgresSetting(login.to_fields(), server_setting.name, value, folder)
    before = setting.read()
    assert before is not None  # noqa: S101  a missing value is UNSET
    delays = "the whole server and all its clients, during the change"
    if hiding:
        more = f" and {len(hiding) - _MAX_SHOWN} more" if len(hiding) > _MAX_SHOWN else ""
        delays += f", except sessions with their own value ({', '.join(hiding[:_MAX_SHOWN])}{more})"
    remedy = Remedy(
        kind="variable",
        name=setting.name,
        from_value=server_setting.value if before == UNSET else before,
        to_value=value,
        lasting=setting.by_hand(value),
        delays=delays,
    )
    return setting, before, remedy


def _check_context(setting: ServerSetting, value: str) -> None:
    """Raise UsageError if ALTER SYSTEM and a reload do not change the setting, or if sessions keep the new value."""
    name = setting.name
    if setting.context == "internal":
        raise UsageError(f"--set {name}: the server computes it, so it cannot be set", "choose another setting")
    if setting.context == "postmaster":
        raise UsageError(
            f"--set {name}={value}: it changes only when the server starts, so it cannot be tried on a live server",
            "set it in postgresql.conf, then restart the server",
        )
    if name in _OF_SESSIONS:
        raise UsageError(
            f"--set {name}: each session sets it, and the server has no value for all", "choose another setting"
        )
    if setting.context in ("backend", "superuser-backend"):
        raise UsageError(
            f"--set {name}={value}: connections that open during the test would keep it until they are closed",
            "set it in postgresql.conf, then SELECT pg_reload_conf()",
        )
    if name in _LISTS:
        raise UsageError(f"--set {name}: its value is a list of quoted names", "choose another setting")
    if setting.source == "command line":
        raise UsageError(
            f"--set {name}={value}: the server's command line sets it, which has precedence over ALTER SYSTEM",
            f"remove {name} from the command line, then restart the server",
        )
    if value == UNSET:
        raise UsageError(f"--set {name}={value} is not a value", f"--set {name}={setting.value}")
