# SPDX-License-Identifier: Apache-2.0
"""The rule for the settings of private servers: reserved ones, harmless ones, and those that need trust.

A reserved setting is powerprof's own, or would make the server less private. A tuning setting is harmless. With any
other setting the author of a workload could run code: it needs the caller's trust, as does every setting that is not
listed here, because new releases add settings.

mariadbd accepts any unambiguous abbreviation of an option, `-` for `_`, and any number of the prefixes skip-, disable-,
enable-, maximum-, loose- and autoset- (mysys/my_getopt.c). A name is therefore judged by all its possible meanings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from powerprof.model.identities import Family
from powerprof.system.errors import UsageError

Setting = str | int | float | bool | None | Sequence[str]

# powerprof sets these: places of files, access, account.
_RESERVED = (
    *("admin_address", "admin_port", "basedir", "bind_address", "bootstrap", "chroot", "daemonize", "datadir"),
    *("defaults_extra_file", "defaults_file", "defaults_group_suffix", "extra_port", "grant_tables", "init_file"),
    *("initialize", "initialize_insecure", "language", "lc_messages_dir", "local_infile", "log_error", "mysqlx"),
    *("networking", "no_defaults", "pid_file", "plugin_dir", "port", "secure_file_priv", "set_variable", "socket"),
    *("symbolic_links", "tmpdir", "user"),
)
# Families of reserved settings: another port, or programs and libraries that the server runs.
_RESERVED_FAMILIES = ("mysqlx_", "wsrep_", "admin_ssl", "admin_tls")
_PREFIXES = ("skip_", "disable_", "enable_", "maximum_", "loose_", "autoset_")
# Reserved in PostgreSQL: places of files, listening, programs and libraries.
_POSTGRESQL_RESERVED = re.compile(
    r"command|librar|directory|_file|_path|listen|socket|^port$|ssl|conninfo|include|provider|log_dest|logging|syslog"
    r"|^log_filename|^restore|^archive|shared_memory_type|event_source|krb|tablespace"
)
# Tuning settings. A family is listed only if no member loads code in any release, so that an abbreviation within the
# family is harmless too. Some members are paths: no value may contain a slash.
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


def format_value(name: str, value: Setting) -> str:
    """Return a value as the server reads it. Raise UsageError if it needs several lines."""
    text = {True: "ON", False: "OFF"}[value] if isinstance(value, bool) else str(value)
    if "\0" in text or "\n" in text:
        raise UsageError(f"the server setting {name} has a line break or NUL in its value", "write it in one line")
    return text


def find_reserved_setting(name: str, family: Family) -> str | None:
    """Return the reserved setting that a name could mean; None if there is none.

    Trust does not allow reserved settings.
    """
    if family == "postgresql":
        return name if _POSTGRESQL_RESERVED.search(name.lower()) else None
    for meaning in _list_meanings(name):
        for reserved in _RESERVED:
            if reserved.startswith(meaning):
                return reserved
        for prefix in _RESERVED_FAMILIES:
            if meaning.startswith(prefix) or prefix.startswith(meaning):
                return prefix.rstrip("_")
    return None


def does_setting_need_trust(name: str, value: Setting, family: Family) -> bool:
    """Return whether the author of a workload could run code with this setting, as far as is known.

    A reserved setting needs no trust, because it is refused.
    """
    if find_reserved_setting(name, family) is not None:
        return False
    if "." in name or "/" in str(value):
        return True
    if family == "postgresql":
        return not _POSTGRESQL_TUNING.fullmatch(name.lower())
    return not any(_MYSQL_TUNING.fullmatch(meaning) for meaning in _list_meanings(name))


def does_variable_need_trust(name: str) -> bool:
    """Return whether an environment variable could make the server load or run something."""
    return name not in _TUNING_VARIABLES


def _list_meanings(name: str) -> Iterator[str]:
    """Yield the name with underscores, then each rest after one more prefix is removed.

    mariadbd also accepts `CACHE.OPTION` for any option, so each rest after a dot is another such name.
    """
    for start in (0, *(dot.end() for dot in re.finditer(r"\.", name))):
        rest = name[start:].lower().replace("-", "_")
        yield rest
        while (prefix := next((word for word in _PREFIXES if rest.startswith(word)), None)) is not None:
            rest = rest.removeprefix(prefix)
            yield rest
