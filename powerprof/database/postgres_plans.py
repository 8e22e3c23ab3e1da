# SPDX-License-Identifier: Apache-2.0
"""Generic plans of PostgreSQL for statements of clients, without executing code of another account.

Texts of values become parameters, so parsing calls no input function. A temporary view of the statement shows in
pg_depend which functions, types and relations it uses. A statement is planned only if these are PostgreSQL's own, or
functions in C that belong to a superuser. All of it is in one transaction, which is rolled back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from powerprof.database import sql
from powerprof.database.base import ExplainedStep, Limits, Login, StatementError
from powerprof.system.foreign_text import printable

if TYPE_CHECKING:
    from powerprof.database.base import Sql

_LIMITS = Limits(answer_s=4.0, waiting_s=10.0, rows=10_000, answer_bytes=1 << 20)
_MAX_STEPS = 20
_MAX_OBJECTS = 5000
_MAX_NAME = 128
_VIEW = "powerprof_explained"
# Since this version EXPLAIN plans a statement with parameters.
_GENERIC_PLAN = 160_000
_STRING = re.compile(r"\"(?:[^\"]|\"\")*\"|(?:\b(?:[EeNn]|[Uu]&))?'0'(?!')|\$(\d+)")
# A type before its value: interval '1 day'.
_TYPED = re.compile(r"\b(interval|date|timestamptz|timestamp|time|timetz)\s+$", re.IGNORECASE)
_PATH_NAME = re.compile(r'\s*(?:"((?:[^"]|"")*)"|([^",\s]+))\s*(?:,|$)')
_STATE = re.compile(r"\[(\w{5})\]\)*$")
_REASONS = {
    "42501": "the account may not read its tables, or create temporary views",
    "42P01": "its tables are not in the schemas that a new session of its account searches",
    "55P03": "one of its tables is locked",
    "57014": "planning took longer than 3 s",
}
# Objects without code: what they use is in the list as well. Only superusers create operator classes, languages,
# access methods, and templates and parsers of text search.
_HARMLESS = frozenset(
    (
        *("pg_rewrite", "pg_namespace", "pg_type", "pg_operator", "pg_collation", "pg_constraint", "pg_attrdef"),
        *("pg_statistic_ext", "pg_language", "pg_am", "pg_cast", "pg_opclass", "pg_opfamily", "pg_extension"),
        *("pg_ts_config", "pg_ts_dict", "pg_ts_template", "pg_ts_parser", "pg_authid", "pg_database"),
    )
)
_RELATIONS = {"v": "it reads a view", "f": "it reads a foreign table"}
_STATE_OF_SERVER = "SELECT pg_catalog.current_setting('server_version_num'), pg_catalog.pg_is_in_recovery()"
_WORK_MEM = "SELECT s.setting FROM pg_catalog.pg_settings s WHERE s.name OPERATOR(pg_catalog.=) 'work_mem'"  # in kB
_TRIGGERS = (
    "SELECT pg_catalog.count(*) FROM pg_catalog.pg_event_trigger t WHERE t.evtenabled OPERATOR(pg_catalog.<>) 'D'"
    " AND pg_catalog.left(t.evtevent, 3) OPERATOR(pg_catalog.=) 'ddl'"
    " AND COALESCE(pg_catalog.current_setting('event_triggers', true), 'on') OPERATOR(pg_catalog.<>) 'off'"
)
_PATHS = (
    "SELECT c.c FROM pg_catalog.pg_db_role_setting s"
    " LEFT JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) s.setrole"
    " LEFT JOIN pg_catalog.pg_database d ON d.oid OPERATOR(pg_catalog.=) s.setdatabase,"
    " pg_catalog.unnest(s.setconfig) c"
    " WHERE COALESCE(r.rolname OPERATOR(pg_catalog.=) {user}, s.setrole OPERATOR(pg_catalog.=) 0)"
    " AND COALESCE(d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database(),"
    " s.setdatabase OPERATOR(pg_catalog.=) 0)"
    " AND pg_catalog.left(c.c, 12) OPERATOR(pg_catalog.=) 'search_path='"
    " ORDER BY s.setrole OPERATOR(pg_catalog.=) 0, s.setdatabase OPERATOR(pg_catalog.=) 0 LIMIT 1"
)
_IS_MEMBER = "pg_catalog.pg_has_role(CURRENT_USER, r.oid, 'MEMBER')"
_ONLY_READS = f"""
SELECT NOT EXISTS (SELECT 1 FROM pg_catalog.pg_roles r WHERE {_IS_MEMBER} AND (r.rolsuper OR r.rolcreaterole
  OR r.rolcreatedb OR r.rolreplication OR r.rolbypassrls OR pg_catalog.left(r.rolname, 3) OPERATOR(pg_catalog.=) 'pg_'
   AND r.rolname OPERATOR(pg_catalog.<>) ALL (ARRAY['pg_read_all_data', 'pg_monitor', 'pg_read_all_stats',
    'pg_read_all_settings', 'pg_stat_scan_tables']::pg_catalog.name[])))
 AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_class c, pg_catalog.pg_roles r
  WHERE c.relowner OPERATOR(pg_catalog.=) r.oid AND {_IS_MEMBER})
 AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_class c, pg_catalog.aclexplode(c.relacl) a, pg_catalog.pg_roles r
  WHERE a.grantee OPERATOR(pg_catalog.=) r.oid AND a.privilege_type OPERATOR(pg_catalog.<>) 'SELECT' AND {_IS_MEMBER})
"""  # noqa: S608  a constant condition
# The objects that a view uses, and the parts of these that a planner looks at: indexes, checks, generated columns,
# statistics and children of tables, attributes of rows, checks of domains, functions of operator classes.
_USED = f"""
WITH RECURSIVE used (class, id) AS (
 SELECT 'pg_rewrite'::pg_catalog.regclass::pg_catalog.oid, r.oid FROM pg_catalog.pg_rewrite r
    WHERE r.ev_class OPERATOR(pg_catalog.=) 'pg_temp.{_VIEW}'::pg_catalog.regclass
 UNION
 SELECT e.class, e.id FROM used u, LATERAL (
  SELECT d.refclassid AS class, d.refobjid AS id FROM pg_catalog.pg_depend d
   WHERE d.classid OPERATOR(pg_catalog.=) u.class AND d.objid OPERATOR(pg_catalog.=) u.id
    AND d.deptype OPERATOR(pg_catalog.=) ANY (ARRAY['n', 'a', 'i']::pg_catalog."char"[])
    AND NOT (d.refclassid OPERATOR(pg_catalog.=) 'pg_class'::pg_catalog.regclass
    AND d.refobjid OPERATOR(pg_catalog.=) 'pg_temp.{_VIEW}'::pg_catalog.regclass)
  UNION ALL SELECT 'pg_class'::pg_catalog.regclass, i.indexrelid FROM pg_catalog.pg_index i
   WHERE u.class OPERATOR(pg_catalog.=) 'pg_class'::pg_catalog.regclass AND i.indrelid OPERATOR(pg_catalog.=) u.id
  UNION ALL SELECT 'pg_class'::pg_catalog.regclass, i.inhrelid FROM pg_catalog.pg_inherits i
   WHERE u.class OPERATOR(pg_catalog.=) 'pg_class'::pg_catalog.regclass AND i.inhparent OPERATOR(pg_catalog.=) u.id
  UNION ALL SELECT 'pg_constraint'::pg_catalog.regclass, k.oid FROM pg_catalog.pg_constraint k
   WHERE k.contype OPERATOR(pg_catalog.=) 'c' AND (u.class OPERATOR(pg_catalog.=) 'pg_class'::pg_catalog.regclass
    AND k.conrelid OPERATOR(pg_catalog.=) u.id
    OR u.class OPERATOR(pg_catalog.=) 'pg_type'::pg_catalog.regclass AND k.contypid OPERATOR(pg_catalog.=) u.id)
  UNION ALL SELECT 'pg_attrdef'::pg_catalog.regclass, f.oid FROM pg_catalog.pg_attrdef f
   JOIN pg_catalog.pg_attribute a ON a.attrelid OPERATOR(pg_catalog.=) f.adrelid
    AND a.attnum OPERATOR(pg_catalog.=) f.adnum AND a.attgenerated OPERATOR(pg_catalog.=) 'v'
   WHERE u.class OPERATOR(pg_catalog.=) 'pg_class'::pg_catalog.regclass AND f.adrelid OPERATOR(pg_catalog.=) u.id
  UNION ALL SELECT 'pg_statistic_ext'::pg_catalog.regclass, x.oid FROM pg_catalog.pg_statistic_ext x
   WHERE u.class OPERATOR(pg_catalog.=) 'pg_class'::pg_catalog.regclass AND x.stxrelid OPERATOR(pg_catalog.=) u.id
  UNION ALL SELECT 'pg_class'::pg_catalog.regclass, t.typrelid FROM pg_catalog.pg_type t
   WHERE u.class OPERATOR(pg_catalog.=) 'pg_type'::pg_catalog.regclass AND t.oid OPERATOR(pg_catalog.=) u.id
    AND t.typrelid OPERATOR(pg_catalog.<>) 0
  UNION ALL SELECT 'pg_proc'::pg_catalog.regclass, p.amproc::pg_catalog.oid FROM pg_catalog.pg_amproc p
   WHERE u.class OPERATOR(pg_catalog.=) 'pg_opfamily'::pg_catalog.regclass
    AND p.amprocfamily OPERATOR(pg_catalog.=) u.id AND p.amproc::pg_catalog.oid OPERATOR(pg_catalog.>=) 16384
  UNION ALL SELECT 'pg_operator'::pg_catalog.regclass, o.amopopr FROM pg_catalog.pg_amop o
   WHERE u.class OPERATOR(pg_catalog.=) 'pg_opfamily'::pg_catalog.regclass
    AND o.amopfamily OPERATOR(pg_catalog.=) u.id AND o.amopopr OPERATOR(pg_catalog.>=) 16384
 ) e
)
SELECT u.class::pg_catalog.regclass::pg_catalog.text, COALESCE(n.nspname, m.nspname), COALESCE(c.relname, p.proname),
 c.relkind, c.relrowsecurity, c.reltuples::pg_catalog.int8,
 p.prolang OPERATOR(pg_catalog.=) ANY (ARRAY[12, 13]::pg_catalog.oid[]) AND o.rolsuper
FROM (SELECT x.class, x.id FROM used x LIMIT {_MAX_OBJECTS + 1}) u
LEFT JOIN pg_catalog.pg_class c ON u.class OPERATOR(pg_catalog.=) 'pg_class'::pg_catalog.regclass
    AND c.oid OPERATOR(pg_catalog.=) u.id
LEFT JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
LEFT JOIN pg_catalog.pg_proc p ON u.class OPERATOR(pg_catalog.=) 'pg_proc'::pg_catalog.regclass
    AND p.oid OPERATOR(pg_catalog.=) u.id
LEFT JOIN pg_catalog.pg_namespace m ON m.oid OPERATOR(pg_catalog.=) p.pronamespace
    LEFT JOIN pg_catalog.pg_roles o ON o.oid OPERATOR(pg_catalog.=) p.proowner
"""  # noqa: S608  a constant name

Sizes = dict[tuple[str, str], int]
"""Rows of tables by schema and name; -1 if the server does not know them."""


def explain_generic(login: Login, text: str, user: str | None) -> list[ExplainedStep]:
    """Return the generic plan of a statement, whose strings `replace_strings` replaced, in the login's database.

    Names are looked up as in a new session of `user`. Raise StatementError with the reason if the statement is not
    planned, PowerprofError if the server cannot be reached. `login` must be an account that only reads.
    """
    statement, count = number_parameters(text)
    if ";" in statement.rstrip("; \n"):
        raise _refusal("it may be several statements")
    with sql.connect(login, limits=_LIMITS) as connection:
        try:
            return _explain(connection, statement.rstrip("; \n"), count, user)
        except StatementError as error:
            state = _STATE.search(error.message)
            if not error.number or state is None:
                raise
            # The server's message is left out: it quotes the text.
            reason = _REASONS.get(state[1], f"the server refused it, error {state[1]}")
            raise _refusal(reason) from None


def _refusal(reason: str) -> StatementError:
    return StatementError(reason, None, 1)


def only_reads(connection: Sql) -> bool:
    """Return whether the account of a connection has no rights but SELECT in its database, except those of PUBLIC."""
    return bool(sql.fetch_scalar(connection, _ONLY_READS) == "t")


def number_parameters(text: str) -> tuple[str, int]:
    """Return the text with a parameter for each replaced string, and the number of its parameters."""
    count = max((int(number) for number in _STRING.findall(text) if number and len(number) < 6), default=0)
    parts, at = list[str](), 0
    for found in _STRING.finditer(text):
        if found[0].endswith("'0'"):
            count += 1
            before, value = text[at : found.start()], f"${count}"
            if (typed := _TYPED.search(before)) is not None:
                before, value = before[: typed.start()], f"CAST(${count} AS {typed[1]})"
            parts += [before, value]
            at = found.end()
    return "".join([*parts, text[at:]]), count


def _explain(connection: Sql, statement: str, count: int, user: str | None) -> list[ExplainedStep]:
    ((version, is_standby),) = sql.fetch_rows(connection, _STATE_OF_SERVER, columns=2)
    if is_standby == "t":
        raise _refusal("a standby cannot show which functions it calls: EXPLAIN it on the primary")
    if not only_reads(connection):
        raise _refusal("the account may do more than SELECT in its database")
    for begin in (
        "BEGIN READ WRITE",
        "SET LOCAL search_path TO pg_catalog, pg_temp",
        "SET LOCAL statement_timeout TO '3s'",
        "SET LOCAL lock_timeout TO '500ms'",
        "SET LOCAL plan_cache_mode TO force_generic_plan",
    ):
        sql.fetch_rows(connection, begin)
    try:
        if sql.parse_count(sql.fetch_scalar(connection, _TRIGGERS)):
            raise _refusal("event triggers of its database would execute code")
        path = _find_search_path(connection, user)
        sql.fetch_rows(connection, path)
        without_values = re.sub(r"\$\d+", "NULL", statement)
        sql.fetch_rows(
            connection, f"CREATE TEMPORARY VIEW {_VIEW} AS SELECT 1 AS one WHERE EXISTS (\n{without_values}\n)"
        )
        sql.fetch_rows(connection, "SET LOCAL search_path TO pg_catalog, pg_temp")
        sizes = judge_objects(sql.fetch_rows(connection, _USED, columns=7))
        memory_kb = sql.parse_count(sql.fetch_scalar(connection, _WORK_MEM)) or 0
        sql.fetch_rows(connection, "SET TRANSACTION READ ONLY")
        sql.fetch_rows(connection, path)
        if (sql.parse_count(version) or 0) >= _GENERIC_PLAN:
            answer = sql.fetch_scalar(connection, f"EXPLAIN (GENERIC_PLAN, VERBOSE, FORMAT JSON) {statement}")
        else:
            sql.fetch_rows(connection, f"PREPARE {_VIEW} AS {statement}")
            values = f"({', '.join(['NULL'] * count)})" if count else ""
            answer = sql.fetch_scalar(connection, f"EXPLAIN (VERBOSE, FORMAT JSON) EXECUTE {_VIEW}{values}")
        return read_steps(answer, sizes, memory_kb << 10)
    finally:
        sql.fetch_rows(connection, "ROLLBACK")


def _find_search_path(connection: Sql, user: str | None) -> str:
    """Return the statement that sets the search_path of a new session of this user."""
    found = sql.fetch_scalar(connection, _PATHS.format(user=_quote_literal(user or "")))
    value = '"$user", public' if found is None else str(found).partition("=")[2]
    names = [quoted.replace('""', '"') or plain.lower() for quoted, plain in _PATH_NAME.findall(value)]
    named = [(user or "") if name == "$user" else name for name in names]
    others = [_quote_name(name) for name in named if name and name not in ("pg_catalog", "pg_temp")]
    return f"SET LOCAL search_path TO {', '.join(['pg_catalog', *others, 'pg_temp'])}"


def _quote_name(name: str) -> str:
    return '"' + name.replace("\0", "").replace('"', '""') + '"'


def _quote_literal(value: str) -> str:
    return "E'" + value.replace("\0", "").replace("\\", "\\\\").replace("'", "\\'") + "'"


def judge_objects(rows: Sequence[Sequence[Any]]) -> Sizes:
    """Return the sizes of the tables that a statement uses. Raise StatementError if planning could execute code."""
    if len(rows) > _MAX_OBJECTS:
        raise _refusal(f"it uses more than {_MAX_OBJECTS:,} objects")
    sizes: Sizes = {}
    for kind, schema, name, relation, is_secured, count, is_trusted in rows:
        shown = printable(f"{schema}.{name}"[:_MAX_NAME])
        reason = None
        if kind == "pg_class":
            reason = _RELATIONS.get(relation) or ("row security protects its table" if is_secured == "t" else None)
            sizes[str(schema), str(name)] = int(count or -1)
        elif kind == "pg_proc":
            reason = None if is_trusted == "t" else f"planning could execute {shown}, a function of another account"
        elif kind not in _HARMLESS:
            reason = f"it uses an object of {printable(str(kind)[:_MAX_NAME])}"
        if reason is not None:
            raise _refusal(reason)
    return sizes


def read_steps(answer: Any, sizes: Sizes, memory_bytes: int) -> list[ExplainedStep]:
    """Return the steps of a plan in JSON that read a table, outermost first. Raise StatementError for another answer.

    A full scan reads all rows of its table. A sort larger than `memory_bytes` is on disk.
    """
    try:
        (plan,) = json.loads(answer)
        tables = list(sql.list_plan_tables(plan["Plan"], memory_bytes))[:_MAX_STEPS]
    except (TypeError, ValueError, KeyError, AttributeError, RecursionError):
        raise _refusal("the server answers with no plan") from None
    return [
        ExplainedStep(
            _shorten(table["table"]),
            _shorten(table["type"]),
            _shorten(table["key"]),
            _count_rows(table, sizes),
            _shorten(table["extra"]),
        )
        for table in tables
    ]


def _count_rows(table: dict[str, Any], sizes: Sizes) -> int | None:
    size = sizes.get((str(table.get("schema")), str(table["table"])), -1)
    return size if table["type"] == "Seq Scan" and size >= 0 else sql.parse_count(table["rows"])


def _shorten(value: Any) -> str | None:
    return None if value in (None, "") else printable(str(value)[:_MAX_NAME])
