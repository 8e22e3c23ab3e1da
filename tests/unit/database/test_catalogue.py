# SPDX-License-Identifier: Apache-2.0
"""Servers of other releases and Java connectors: the catalogue, consent, and what is kept."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from powerprof.database import catalogue
from powerprof.database.debian_packages import DebianPackages
from powerprof.database.maven import MavenJar
from powerprof.system.errors import CapabilityError, Declined, PowerprofError, UsageError
from powerprof.workloads.definition import Load


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (2_533_399, "2.5 MB"),
        (9_949_999, "9.9 MB"),
        (9_999_999, "10.0 MB"),
        (10_400_000, "10 MB"),
        (140_128_698, "140 MB"),
    ],
)
def test_sizes_are_in_millions_of_bytes(size_bytes: int, text: str) -> None:
    known = catalogue.find_entry("mysql-connector-j")
    source = msgspec.structs.replace(known.source, download_bytes=size_bytes)
    assert msgspec.structs.replace(known, source=source).size_text == text


@pytest.mark.parametrize("name", catalogue.load_catalogue())
def test_entries_name_one_program_or_jar_with_a_digest(name: str) -> None:
    entry = catalogue.find_entry(name)
    if isinstance(entry.source, DebianPackages):
        assert entry.version == ".".join(map(str, entry.source.version))
        assert entry.name == f"{entry.source.family}-{entry.version}"
        assert Path(entry.source.binary).is_absolute()
    else:
        assert re.fullmatch("[0-9a-f]{64}", entry.source.sha256)
        # A server is unpacked for one machine; a connector is its jar.
        assert bool(entry.source.members) == bool(entry.source.binary) == bool(entry.machine) == (entry.scheme is None)


def test_connectors_of_loads_are_in_the_catalogue_and_are_no_servers() -> None:
    connectors = [entry.name for entry in catalogue.load_catalogue().values() if entry.scheme is not None]
    assert connectors == list(get_args(get_type_hints(Load)["connector"]))
    for name in connectors:
        with pytest.raises(UsageError, match=f"no server is called '{name}'") as caught:
            catalogue.find_server(name)
        assert "mariadb-11.4" in str(caught.value.hint) and name not in str(caught.value.hint)


def test_nothing_is_downloaded_without_consent(
    index: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    server = catalogue.find_server("mysql-5.5.9")
    asked: list[str] = []
    with pytest.raises(Declined, match="was not fetched"):
        catalogue.fetch_entry(server, lambda question: bool(asked.append(question)))
    assert "GPL-2.0" in asked[0]
    assert "140 MB" in asked[0]
    with pytest.raises(PowerprofError, match="cannot download"):
        catalogue.fetch_entry(server, lambda question: True)
    assert not server.is_fetched
    with pytest.raises(CapabilityError, match="has not been fetched") as caught:
        catalogue.load_build("mysql-5.5.9")
    assert caught.value.hint == "fetch it: powerprof servers fetch mysql-5.5.9"
    with pytest.raises(UsageError, match="no server is called"):
        catalogue.find_server("mysql-4.1")


def test_a_connector_is_fetched_once_after_consent_and_kept(
    index: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    digest = hashlib.sha256(b"archive").hexdigest()
    jar = MavenJar(group="org.example", artifact="thing", release="1.0", download_bytes=7, sha256=digest)
    known = msgspec.structs.replace(catalogue.find_entry("mysql-connector-j"), source=jar)
    monkeypatch.setitem(catalogue.load_catalogue(), "mysql-connector-j", known)
    with pytest.raises(CapabilityError, match="has not been fetched"):
        catalogue.read_jar("mysql-connector-j")
    asked: list[str] = []
    with pytest.raises(Declined, match="was not fetched"):
        catalogue.fetch_entry(known, lambda question: bool(asked.append(question)), asked.append)
    assert "0.0 MB, from http://127.0.0.1" in asked[0]
    assert asked[0].endswith("It is run as the account of the servers")
    index["/maven2/org/example/thing/1.0/thing-1.0.jar"] = (200, b"archive")
    for _ in range(2):
        catalogue.fetch_entry(known, lambda question: True, asked.append)
    assert asked[1:] == ["downloading thing-1.0.jar"]
    assert list(known.place.parent.iterdir()) == [known.place]
    assert catalogue.read_jar("mysql-connector-j") == b"archive"


def test_another_machine_cannot_run_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(CapabilityError, match="runs on x86_64 only"):
        catalogue.fetch_entry(catalogue.find_server("mysql-5.5.9"), lambda question: True)
