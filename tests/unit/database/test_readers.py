# SPDX-License-Identifier: Apache-2.0
"""Accounts that may only read: grants, names, and plans of statements."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.database import readers, sql
from powerprof.database.base import Login, StatementError
from powerprof.database.readers import may_only_read
from powerprof.system import paths
from powerprof.system.errors import PowerprofError
from tests.programs.answers import Answers

_USAGE, _SELECT = "GRANT USAGE ON *.* TO `r`@`h`", "GRANT SELECT, SHOW VIEW ON `shop`.* TO `r`@`h`"


@pytest.mark.parametrize(
    ("grants", "only_reads"),
    [
        ([_USAGE, _SELECT], True),
        (["grant select on `a`.* to r"], True),
        ([], False),
        ([_USAGE, f"{_SELECT} WITH GRANT OPTION"], False),
        ([_USAGE, "GRANT `admins`@`%` TO `r`@`h`"], False),
        ([_USAGE, "GRANT SELECT, EXECUTE ON `shop`.* TO `r`@`h`"], False),
        ([_SELECT, "GRANT PROXY ON ''@'' TO 'r'@'h'"], False),
        (["GRANT SELECT (c), UPDATE (c) ON `shop`.`t` TO `r`@`h`"], False),
    ],
)
def test_an_account_only_reads_if_each_grant_does(grants: list[str], only_reads: bool) -> None:
    assert may_only_read(Answers({"SHOW GRANTS": [(grant,) for grant in grants]})) is only_reads


def _matches(pattern: str, text: str) -> bool:
    """Return whether a schema pattern of GRANT covers a name: `_` is any character, `%` any text."""
    if not pattern:
        return not text
    if pattern[0] == "\\" and len(pattern) > 1:
        return text[:1] == pattern[1] and _matches(pattern[2:], text[1:])
    if pattern[0] == "%":
        return any(_matches(pattern[1:], text[at:]) for at in range(len(text) + 1))
    return bool(text) and pattern[0] in ("_", text[0]) and _matches(pattern[1:], text[1:])


@given(st.text("ab_%\\`", min_size=1, max_size=4), st.text("ab_%\\`", min_size=1, max_size=4))
def test_a_grant_covers_its_own_schema_alone(schema: str, other: str) -> None:
    quoted = readers._quote_schema(schema)
    assert quoted[0] == quoted[-1] == "`"
    pattern = quoted[1:-1].replace("``", "`")
    assert _matches(pattern, schema)
    assert _matches(pattern, other) is (other == schema)


@pytest.mark.parametrize("schema", ["mysql", "SYS", "Information_Schema", "performance_schema"])
def test_system_schemas_are_not_granted(schema: str) -> None:
    account: Any = readers.ReadOnlyAccount(Login(user="u"), schema)
    assert account._schema is None
    assert readers.ReadOnlyAccount(Login(user="u"), "shop")._schema == "shop"


_MAKER = Login(user="root", password="s3cret", host="db")


def _make(monkeypatch: pytest.MonkeyPatch, folder: Path, schema: str | None, **answers: Any) -> tuple[Answers, Login]:
    """Return the statements of an account's maker, and the login of the account within its block."""
    monkeypatch.setattr(paths, "changed_dir", lambda **_: folder)
    control = Answers(
        {
            "SHOW GRANTS": answers.pop("grants", [[("GRANT ALL PRIVILEGES ON *.* TO `root`@`h`",)], [(_USAGE,)]]),
            "SUBSTRING_INDEX": [("10.0.0.7",)],
            "GET_LOCK": [(1,)],
            "GRANTEE LIKE": [("'pp_read_01234567'@'h'",), ("'pp_read_odd'@'h'",), ("'root'@'h'",)],
            "@@version": [("10.11.9-MariaDB",)],
            **answers,
        }
    )
    monkeypatch.setattr(sql, "connect", lambda *_, **__: control)
    with readers.ReadOnlyAccount(_MAKER, schema) as reader:
        assert (len(list(folder.glob("*.account"))) == 1) is (reader.login is not _MAKER)
        login = reader.login
    assert list(folder.glob("*.account")) == []
    return control, login


def test_an_account_is_made_for_one_schema_and_dropped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    control, login = _make(monkeypatch, tmp_path, "sh_op")
    account = f"'{login.user}'@'10.0.0.7'"
    assert control.sent[1:3] == ["SET SESSION sql_log_bin = 0", "SET SESSION wait_timeout = 2147483"]
    drops = [statement for statement in control.sent if statement.startswith("DROP")]
    assert drops == ["DROP USER 'pp_read_01234567'@'h'", f"DROP USER {account}"], "of killed processes, then its own"
    assert f"GRANT SELECT ON `sh\\_op`.* TO {account}" in control.sent
    (created,) = [statement for statement in control.sent if statement.startswith("CREATE USER")]
    once = hashlib.sha1(login.password.encode(), usedforsecurity=False).digest()
    twice = hashlib.sha1(once, usedforsecurity=False).hexdigest().upper()
    assert created == f"CREATE USER {account} IDENTIFIED BY PASSWORD '*{twice}'"


def test_an_account_that_only_reads_is_used_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    control, login = _make(monkeypatch, tmp_path, "shop", grants=[(_SELECT,)])
    assert login is _MAKER and control.sent == ["SHOW GRANTS"]


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ({"GET_LOCK": [(0,)]}, "gives no lock"),
        ({"CREATE USER": StatementError("with s3cret", None, 1227)}, "it cannot create accounts"),
        ({"GRANT SELECT": StatementError("with s3cret", None, 1044)}, "it cannot grant rights on that schema"),
        ({"CREATE USER": StatementError("with s3cret", None, 4711)}, "error 4711"),
        ({"grants": [[("GRANT ALL ON *.* TO r",)]] * 2}, "more rights than SELECT"),
    ],
)
def test_an_account_that_cannot_be_made_is_an_error_without_the_password(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answers: dict[str, Any], reason: str
) -> None:
    with pytest.raises(PowerprofError, match=reason) as error:
        _make(monkeypatch, tmp_path, "shop", **answers)
    assert "s3cret" not in error.value.message
