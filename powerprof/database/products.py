# SPDX-License-Identifier: Apache-2.0
"""Differences between MariaDB, MySQL and PostgreSQL as private servers, and the rule for their settings.

Each setting of a private server has one of three kinds. A reserved setting is powerprof's own, or would make the
server less private. A tuning setting is harmless. With any other setting the author of a workload could run code: it
needs the caller's trust, as does every setting that is not listed here, because new releases add settings.

mariadbd accepts any unambiguous abbreviation of an option, `-` for `_`, and any number of the prefixes skip-, disable-,
enable-, maximum-, loose- and autoset- (mysys/my_getopt.c). A name is therefore judged by all its possible meanings.
"""

from __future__ import annotations

import re
import secrets
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from powerprof.database import builds, sandbox, sql
from powerprof.database.base import Login, Sql
from powerprof.database.builds import ServerBuild, check_program, on_host, raise_missing_library
from powerprof.database.connections import SPARE_FILES
from powerprof.measure.procfs import list_children
from powerprof.model.identities import Family
from powerprof.system import programs
from powerprof.system.errors import CapabilityError, PowerprofError, UsageError
from powerprof.system.server_names import is_postgres_program
from powerprof.system.server_roles import read_roles

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
_MYSQL_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
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


def format_settings(settings: Mapping[str, Setting]) -> list[str]:
    """Return a my.cnf fragment as options: True becomes ON, None the bare option, and a sequence repeats the option.

    Raises UsageError for an invalid name or value, and for a reserved setting.
    """
    words = []
    for name, value in settings.items():
        if not _MYSQL_NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} is not the name of a server setting", "mariadbd --verbose --help lists those that there are"
            )
        reserved = find_reserved_setting(name, "mysql")
        if reserved is not None:
            same = name.lower().replace("-", "_") == reserved
            raise UsageError(
                f"the server setting {name} is powerprof's own and cannot be changed",
                "leave it out" if same else f"it could mean {reserved}; write the setting you mean in full",
            )
        for item in value if isinstance(value, Sequence) and not isinstance(value, str) else [value]:
            text = _one_line(name, item)
            words.append(f"--{name}" if item is None else f"--{name}={text}")
    return words


def _one_line(name: str, value: Setting) -> str:
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


# MariaDB and MySQL.

_INIT_SQL = "init.sql"
_MYSQL_SOCKET = "mysqld.sock"
_USER = "powerprof"
_SPARE_CONNECTIONS = 24


def build_mysql_login(directory: Path) -> Login:
    """Return powerprof's account with a random password: every user of the host can reach a loopback port."""
    return Login(user=_USER, password=secrets.token_urlsafe(24), socket=directory / _MYSQL_SOCKET)


def write_mysql_files(build: ServerBuild, account: Login) -> Mapping[str, str]:
    """Return the file that creates the account. A password in a private file is on no command line."""
    return {_INIT_SQL: builds.write_account_sql(build, account.user, account.password)}


def build_mysql_words(
    build: ServerBuild, settings: Mapping[str, Setting], connections: int, directory: Path
) -> list[str]:
    """Return the command line after the program: the requested settings, then those that make the server private.

    The last of two settings with the same name applies, in any spelling.
    """
    argv = ["--no-defaults", "--skip-name-resolve"]
    if build.names_threads:
        # On other builds it would use memory and name no thread.
        argv.append("--performance-schema=ON")
    if connections > 100:
        argv += [
            f"--max-connections={connections + _SPARE_CONNECTIONS}",
            f"--open-files-limit={connections + SPARE_FILES}",
            # Thousands of clients connect at once, and none may be refused (listen(2), net.core.somaxconn).
            "--back-log=1024",
        ]
    return [
        *argv,
        *format_settings(settings),
        f"--datadir={directory}/data",
        f"--socket={directory}/{_MYSQL_SOCKET}",
        f"--pid-file={directory}/mysqld.pid",
        f"--tmpdir={directory / 'tmp'}",
        f"--init-file={directory}/{_INIT_SQL}",
        # Statements of a workload may not use files of this host: INTO OUTFILE, LOAD DATA, DATA DIRECTORY.
        f"--secure-file-priv={directory / 'tmp'}",
        "--local-infile=OFF",
        "--loose-skip-symbolic-links",
        # MySQL's second protocol listens on all addresses by default.
        "--loose-mysqlx=OFF",
    ]


def _read_mysql_names(connect: Callable[[], Sql], pid: int) -> dict[int, str]:
    """Return the names of performance_schema."""
    with connect() as connection:
        return sql.read_thread_names(connection, pid)


def build_mysql_network(port: int | None, address: str) -> list[str]:
    """Return the options for TCP."""
    return ["--skip-networking"] if port is None else [f"--port={port}", f"--bind-address={address}"]


# PostgreSQL.

_HBA_FILE = "hba.conf"
_DEBIAN_FOLDER = Path("/usr/lib/postgresql")
# The socket is named after the port even without TCP.
_POSTGRES_SOCKET = ".s.PGSQL.5432"
_POSTGRES_NAME = re.compile(r"[a-z][a-z0-9_.]{0,63}")


def find_postgres_build(binary: Path | None = None, root: Path | None = None) -> ServerBuild:
    """Return the PostgreSQL server to start.

    It is `binary` (of `root`), or the newest of Debian's packages. Raises CapabilityError if there is none,
    PowerprofError if it does not run.
    """
    if binary is None:
        places = [place for place in _DEBIAN_FOLDER.glob("*/bin/postgres") if place.parts[-3].isdigit()]
        binary = max(places, key=lambda place: int(place.parts[-3]), default=None) or programs.which("postgres")
    if binary is None:
        raise CapabilityError("postgres is not installed", "apt install postgresql")
    check_program(on_host(binary, root), "postgres that is there, or apt install postgresql")
    build = ServerBuild(binary, "postgresql", (0, 0, 0), "", root=root)
    command = [str(binary.absolute()), "--version"]
    done = sandbox.run(command, build.sandbox(), timeout_s=30)
    version = re.match(r"postgres \(PostgreSQL\) (\d{1,3})(?:\.(\d{1,3}))?", done.stdout)
    if done.returncode != 0 or not version:
        raise_missing_library(done.stderr, binary)
        raise PowerprofError(
            f"{binary} is not a PostgreSQL server ({done.tail(1) or 'no version'})",
            "such as /usr/lib/postgresql/15/bin/postgres",
        )
    return msgspec.structs.replace(build, version=(int(version[1]), int(version[2] or 0), 0), text=done.stdout.strip())


def build_initialise_steps(build: ServerBuild, datadir: Path) -> list[tuple[list[str], str]]:
    """Return the commands, each with its input, that create empty data with an account without superuser rights.

    A superuser's statements could do to files and programs whatever the server's account may (COPY … TO PROGRAM). The
    superuser of initdb cannot log in. Raises CapabilityError if initdb is absent.
    """
    initdb = build.binary.with_name("initdb")
    if not on_host(initdb, build.root).is_file():
        raise CapabilityError(f"{initdb} is not there", "apt install postgresql")
    return [
        (
            [
                *(str(initdb), f"--pgdata={datadir}", "--username=postgres", "--auth=reject"),
                *("--encoding=UTF8", "--locale=C", "--no-sync"),
            ],
            "",
        ),
        (
            [str(build.binary), "--single", "-D", str(datadir), "-c", "log_min_messages=warning", "postgres"],
            f"CREATE ROLE {_USER} LOGIN CREATEDB IN ROLE pg_monitor\n"
            + (f"GRANT pg_checkpoint TO {_USER}\n" if build.version >= (15, 0, 0) else ""),
        ),
    ]


def build_postgres_login(directory: Path) -> Login:
    """Return powerprof's account.

    Only the server's account may enter the folder of the socket, which replaces a password.
    """
    socket = directory / _POSTGRES_SOCKET
    # The server is trusted: a workload's statements find their tables as in any session.
    return Login(user=_USER, socket=socket, database="postgres", family="postgresql", session_options="")


def write_postgres_files(build: ServerBuild, account: Login) -> Mapping[str, str]:
    """Return the file that admits powerprof's account."""
    return {_HBA_FILE: f"local all {account.user} trust\n"}


def build_postgres_words(
    build: ServerBuild, settings: Mapping[str, Setting], connections: int, directory: Path
) -> list[str]:
    """Return the command line after the program.

    The settings that make the server private are last and take precedence.
    """
    asked = [f"{name}={value}" for name, value in check_postgres_settings(settings).items()]
    if connections > 90:
        asked.insert(0, f"max_connections={connections + 16}")
    ours = [
        "listen_addresses=",
        f"unix_socket_directories={directory}",
        "unix_socket_permissions=0700",
        f"hba_file={directory / _HBA_FILE}",
        "log_destination=stderr",
        "logging_collector=off",
        # Files in its own folder are removed with it. Segments in /dev/shm would remain after a kill -9.
        "dynamic_shared_memory_type=mmap",
    ]
    return ["-D", f"{directory}/data", *(word for setting in (*asked, *ours) for word in ("-c", setting))]


def check_postgres_settings(settings: Mapping[str, Setting]) -> dict[str, str]:
    """Return settings as the server reads them. Raise UsageError for an invalid or reserved one."""
    checked_settings = {}
    for name, value in settings.items():
        plain = name.lower()
        if not _POSTGRES_NAME.fullmatch(plain):
            raise UsageError(
                f"{name!r} is not the name of a setting of PostgreSQL", "SHOW ALL lists those that there are"
            )
        if find_reserved_setting(name, "postgresql") is not None:
            raise UsageError(f"the server setting {name} is powerprof's own and cannot be changed", "leave it out")
        text = _one_line(name, value)
        checked_settings[plain] = text.lower() if isinstance(value, bool) else text
    return checked_settings


def list_processes(pid: int) -> Sequence[int]:
    """Return the server and its processes."""
    return (pid, *list_children(pid))


Steps = Sequence[tuple[Sequence[str], str]]


class Product(msgspec.Struct, frozen=True):
    """A kind of server.

    Attributes:
        find: Find its program from `binary`.
        check: Refuse reserved settings.
        initialise: Return the commands that create empty data, each with its input.
        login: Return the account of a server in this directory.
        files: Return the files that the account needs.
        temporary_files: Files to remove when the server answers.
        words: Return the command line except for the network.
        network: Return the options for TCP on a port and address.
        processes: Return the processes of a server.
        names: Return thread names by kernel thread id.
        end_signal: Signal that ends all processes at once.
    """

    title: str
    find: Callable[[Path | None], ServerBuild]
    check: Callable[[Mapping[str, Setting]], object]
    initialise: Callable[[ServerBuild, Path], Steps]
    login: Callable[[Path], Login]
    files: Callable[[ServerBuild, Login], Mapping[str, str]]
    temporary_files: tuple[str, ...]
    words: Callable[[ServerBuild, Mapping[str, Setting], int, Path], list[str]]
    network: Callable[[int | None, str], list[str]]
    processes: Callable[[int], Sequence[int]]
    names: Callable[[Callable[[], Sql], int], dict[int, str]]
    end_signal: signal.Signals
    has_tcp: bool = True


MYSQL = Product(
    title="MariaDB or MySQL",
    find=builds.find_build,
    check=format_settings,
    initialise=lambda build, datadir: [(builds.build_initialise_command(build, datadir), "")],
    login=build_mysql_login,
    files=write_mysql_files,
    temporary_files=(_INIT_SQL,),
    words=build_mysql_words,
    network=build_mysql_network,
    processes=lambda pid: (pid,),
    names=_read_mysql_names,
    end_signal=signal.SIGKILL,
)
POSTGRESQL = Product(
    title="PostgreSQL",
    find=find_postgres_build,
    check=check_postgres_settings,
    initialise=build_initialise_steps,
    login=build_postgres_login,
    files=write_postgres_files,
    temporary_files=(),
    words=build_postgres_words,
    network=lambda _port, _address: [],
    processes=list_processes,
    names=lambda _connect, pid: read_roles(list_processes(pid)),
    # "Immediate shutdown": all processes end without writing. SIGKILL would leave busy ones behind.
    end_signal=signal.SIGQUIT,
    has_tcp=False,
)
PRODUCTS: Mapping[str, Product] = {"mysql": MYSQL, "mariadb": MYSQL, "postgresql": POSTGRESQL}


def product_of(build: ServerBuild) -> Product:
    """Return the product of a program."""
    return PRODUCTS[build.family]


def find_program(family: str, binary: Path | None) -> ServerBuild:
    """Return the program to start: `binary` with its product by name, else a program of the family."""
    named = POSTGRESQL if binary is not None and is_postgres_program(binary.name) else PRODUCTS[family]
    return named.find(binary)
