# SPDX-License-Identifier: Apache-2.0
"""Logins: addresses for people, and all fields for a process of powerprof."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.database.base import Login
from powerprof.system.caller import HostUser

FULL = Login(
    user="alice",
    password="s3cret",
    socket=Path("/run/s.sock"),
    host="db",
    port=4001,
    database="shop",
    tls={"ca": "/ca.pem"},
    family="postgresql",
    account=HostUser(1001, 1002, Path("/home/alice"), "alice"),
    pid=77,
    session_options="-c a=b",
    options=Path("/home/alice/my.cnf"),
)


@pytest.mark.parametrize(
    ("login", "text"),
    [
        (FULL, "alice@/run/s.sock"),
        (Login(user="a"), "mysql://a@127.0.0.1:3306/"),
        (Login(user="a", host="::1", port=4001), "mysql://a@[::1]:4001/"),
        (Login(user="a", host="db", family="mysql"), "mysql://a@db:3306/"),
    ],
)
def test_an_address_has_no_password(login: Login, text: str) -> None:
    assert login.text == text
    assert repr(login) == f"Login({text})"


def test_a_changed_login_keeps_its_other_fields() -> None:
    fields = FULL.to_fields()
    assert FULL.in_database("other").to_fields() == {**fields, "database": "other"}
    assert FULL.in_database(None).to_fields() == fields
    assert FULL.for_process(9).to_fields() == {**fields, "pid": 9}
    assert FULL.with_session_options("").to_fields() == {**fields, "session_options": ""}
    other = {"user": "reader", "password": "other", "database": None, "options": None}
    assert FULL.with_account("reader", "other").to_fields() == {**fields, **other}


_TEXT = st.text(st.characters(codec="ascii", exclude_characters="\0/"), min_size=1, max_size=8)
_PLACE = st.none() | _TEXT.map(lambda text: Path("/run") / text)


@given(
    st.builds(
        Login,
        user=_TEXT,
        password=_TEXT,
        socket=_PLACE,
        host=st.none() | _TEXT,
        port=st.none() | st.integers(1, 65535),
        database=st.none() | _TEXT,
        tls=st.dictionaries(_TEXT, _TEXT, max_size=2),
        account=st.none() | st.builds(HostUser, st.integers(0, 9), st.integers(0, 9), st.just(Path("/h")), _TEXT),
        pid=st.none() | st.integers(1, 99),
        session_options=st.none() | _TEXT,
        options=_PLACE,
    )
)
def test_fields_describe_the_whole_login(login: Login) -> None:
    fields = login.to_fields()
    again = Login.from_fields(fields)
    assert again.to_fields() == fields
    assert (again.socket, again.options, again.account) == (login.socket, login.options, login.account)


@pytest.mark.parametrize("changes", [{"account": {"uid": 1}}, {"other": 1}, {"socket": 7}])
def test_other_fields_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not the fields of a login"):
        Login.from_fields({**FULL.to_fields(), **changes})
    with pytest.raises(ValueError, match="not the fields of a login"):
        Login.from_fields({})
