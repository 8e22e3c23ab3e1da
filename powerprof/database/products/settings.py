# SPDX-License-Identifier: Apache-2.0
"""Settings of private servers: the words of a command line, and the one decision about each name.

A setting is reserved (powerprof sets it, or it would make the server less private), or it only tunes, or the author of
a workload could run code with it. The last kind needs the caller's trust, and so does every setting that is not listed
here: a new release of a server may add one.

mariadbd accepts any unambiguous abbreviation of an option, `-` for `_`, and any number of the prefixes skip-, disable-,
enable-, maximum-, loose- and autoset- (mysys/my_getopt.c). So a name is judged by everything that it could mean.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from powerprof.errors import UsageError
from powerprof.statements.identity import Family

Setting = str | int | float | bool | None | Sequence[str]

# powerprof sets these: where the server keeps its files, who may reach it, as whom it runs.
_OURS = (
    "admin_address",
    "admin_port",
    "basedir",
    "bind_address",
    "bootstrap",
    "chroot",
    "daemonize",
    "datadir",
    "defaults_extra_file",
    "defaults_file",
    "defaults_group_suffix",
    "extra_port",
    "grant_tables",
    "init_file",
    "initialize",
    "initialize_insecure",
    "language",
    "lc_messages_dir",
    "local_infile",
    "log_error",
    "mysqlx",
    "networking",
    "no_defaults",
    "pid_file",
    "plugin_dir",
    "port",
    "secure_file_priv",
    "set_variable",
    "socket",
    "symbolic_links",
    "tmpdir",
    "user",
)
# Families of reserved settings: another port, or programs and libraries for the server to run.
_FAMILIES = ("mysqlx_", "wsrep_", "admin_ssl", "admin_tls")
_BEFORE = ("skip_", "disable_", "enable_", "maximum_", "loose_", "autoset_")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
# Places of files, listening, programs and libraries of PostgreSQL.
_POSTGRESQL_RESERVED = re.compile(
    r"command|librar|directory|_file|_path|listen|socket|^port$|ssl|conninfo|include|provider|log_dest|logging|syslog"
    r"|^log_filename|^restore|^archive|shared_memory_type|event_source|krb|tablespace"
)
# Settings that only tune. A family is listed only if no member of it loads code in any release; then an abbreviation
# within the family is harmless too. Members that are paths remain, so no value may contain a slash.
_MYSQL_TUNING = re.compile(
    r"(?:analyze|aria|auto_increment|binlog|column_compression|deadlock|delayed|gtid|histogram|idle|innodb|join|key"
    r"|log_slow|long|max|metadata_locks|min|mrr|myisam|net|optimizer|performance_schema|query|range|read|replica"
    r"|replicate|rpl_semi_sync|session_track|slave|slow|sort|sync|table|tcp|temptable|thread|tmp|transaction)_\w+"
    r"|autocommit|back_log|big_tables|bulk_insert_buffer_size|character_set_server|collation_server|concurrent_insert"
    r"|connect_timeout|default_(?:storage_engine|time_zone|tmp_storage_engine)|delay_key_write"
    r"|enforce_gtid_consistency|eq_range_index_dive_limit|event_scheduler|expensive_subquery_limit|expire_logs_days"
    r"|explicit_defaults_for_timestamp|flush|flush_time|ft_max_word_len|ft_min_word_len|general_log"
    r"|group_concat_max_len|host_cache_size|in_predicate_conversion_threshold|information_schema_stats_expiry"
    r"|interactive_timeout|internal_tmp_mem_storage_engine|large_pages|lock_wait_timeout|log_bin"
    r"|log_(?:bin_compress|bin_trust_function_creators|error_verbosity|output|queries_not_using_indexes"
    r"|replica_updates|slave_updates|warnings)"
    r"|low_priority_updates|lower_case_table_names|memlock|open_files_limit|performance_schema|preload_buffer_size"
    r"|profiling_history_size|relay_log_(?:purge|recovery|space_limit)|rowid_merge_buff_size|server_id"
    r"|skip_(?:host_cache|name_resolve|slave_start)|sql_mode|stored_program_cache|sysdate_is_now|tx_isolation"
    r"|use_stat_tables|userstat|wait_timeout"
)
_POSTGRESQL_TUNING = re.compile(
    r"(?:autovacuum|bgwriter|checkpoint|commit|cpu|debug_print|effective|enable|geqo|idle|io|jit|log|maintenance|max"
    r"|min|parallel|stats|tcp|track|vacuum|wal)_\w+"
    r"|autovacuum|backend_flush_after|bytea_output|client_min_messages|compute_query_id|constraint_exclusion"
    r"|cursor_tuple_fraction|datestyle|deadlock_timeout"
    r"|default_(?:statistics_target|toast_compression|transaction_deferrable|transaction_isolation"
    r"|transaction_read_only)"
    r"|from_collapse_limit|fsync|full_page_writes|geqo|hash_mem_multiplier|huge_page_size|huge_pages|jit"
    r"|join_collapse_limit|lock_timeout|logical_decoding_work_mem|multixact_\w+_buffers|notify_buffers"
    r"|old_snapshot_threshold|plan_cache_mode|random_page_cost|recovery_prefetch|recursive_worktable_factor"
    r"|seq_page_cost|serializable_buffers|shared_buffers|statement_timeout|subtransaction_buffers|summarize_wal"
    r"|superuser_reserved_connections|synchronize_seqscans|synchronous_commit|temp_buffers|timezone"
    r"|transaction_buffers|transaction_timeout|update_process_title|work_mem"
)
# Sizes and limits of glibc's malloc: mallopt(3). Any other variable may name a file, a library or a program.
_TUNING_VARIABLES = frozenset(
    f"MALLOC_{name}"
    for name in ("ARENA_MAX", "ARENA_TEST", "MMAP_MAX_", "MMAP_THRESHOLD_", "TOP_PAD_", "TRIM_THRESHOLD_")
)


def setting_arguments(settings: Mapping[str, Setting]) -> list[str]:
    """A my.cnf fragment as options: True is ON, None the bare option, a sequence the option repeated.

    Raises UsageError for an invalid name or value, and for a reserved setting.
    """
    words = []
    for name, value in settings.items():
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} is not the name of a server setting", "mariadbd --verbose --help lists those that there are"
            )
        ours = reserved_setting(name, "mysql")
        if ours is not None:
            same = name.lower().replace("-", "_") == ours
            raise UsageError(
                f"the server setting {name} is powerprof's own and cannot be changed",
                "leave it out" if same else f"it could mean {ours}; write the setting you mean in full",
            )
        for item in value if isinstance(value, Sequence) and not isinstance(value, str) else [value]:
            text = {True: "ON", False: "OFF"}[item] if isinstance(item, bool) else str(item)
            if "\0" in text or "\n" in text:
                raise UsageError(
                    f"the server setting {name} has a line break or NUL in its value", "write it in one line"
                )
            words.append(f"--{name}" if item is None else f"--{name}={text}")
    return words


def reserved_setting(name: str, family: Family) -> str | None:
    """Return the reserved setting that the server could take `name` for, or None. No trust allows these."""
    if family == "postgresql":
        return name if _POSTGRESQL_RESERVED.search(name.lower()) else None
    for meaning in _meanings(name):
        for ours in _OURS:
            if ours.startswith(meaning):
                return ours
        for prefix in _FAMILIES:
            if meaning.startswith(prefix) or prefix.startswith(meaning):
                return prefix.rstrip("_")
    return None


def needs_trust(name: str, value: Setting, family: Family) -> bool:
    """Return whether the author of a workload could run code with this setting, as far as is known here.

    A reserved setting needs no trust, because it is refused.
    """
    if reserved_setting(name, family) is not None:
        return False
    if "." in name or "/" in str(value):
        return True
    if family == "postgresql":
        return not _POSTGRESQL_TUNING.fullmatch(name.lower())
    return not any(_MYSQL_TUNING.fullmatch(meaning) for meaning in _meanings(name))


def variable_needs_trust(name: str) -> bool:
    """Return whether an environment variable could make the server load or run something."""
    return name not in _TUNING_VARIABLES


def _meanings(name: str) -> Iterator[str]:
    """Yield the name with underscores, then each rest after one more prefix is removed.

    mariadbd also accepts `CACHE.OPTION` for any option, so each rest after a dot is such a name as well.
    """
    for start in (0, *(dot.end() for dot in re.finditer(r"\.", name))):
        rest = name[start:].lower().replace("-", "_")
        yield rest
        while (prefix := next((word for word in _BEFORE if rest.startswith(word)), None)) is not None:
            rest = rest.removeprefix(prefix)
            yield rest
