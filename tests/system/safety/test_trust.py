# SPDX-License-Identifier: Apache-2.0
"""A workload of somebody that brings programs: asked about once, remembered by content, never run as root."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from powerprof.database import postgresql, settings
from powerprof.database.sandbox import find_server_account
from powerprof.model.identities import Family
from powerprof.system import programs
from powerprof.system.errors import DataError, UsageError
from powerprof.workloads import trust
from powerprof.workloads.reading import Case, read_workload, resolve
from tests.conftest import Cli
from tests.system.safety.conftest import Attacker

_TOML = """schema = "powerprof.workload/1"
name = "theirs"
title = "A client of its own"
[load]
kind = "command"
argv = ["./client.sh", "{socket}"]
[conditions.only]
"""


def workload(place: Path, toml: str = _TOML, program: str = "echo queries=1\n") -> Path:
    """A folder with a program in it."""
    folder = place / "theirs"
    folder.mkdir()
    (folder / "workload.toml").write_text(toml)
    (folder / "client.sh").write_text(f"#!/bin/sh\n{program}")
    (folder / "client.sh").chmod(0o755)
    return folder


def case_of(folder: Path) -> Case:
    return resolve(read_workload(folder), "only")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUDO_UID", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def test_it_is_asked_about_until_it_is_trusted_and_again_after_a_change(tmp_path: Path) -> None:
    folder = workload(tmp_path)
    for number, change in enumerate((None, lambda: (folder / "extra").write_text("x"))):
        if change is not None:
            change()
        copies = tmp_path / f"copies-{number}"
        copies.mkdir()
        with pytest.raises(UsageError, match=r"theirs of .* runs its own programs \(load.argv: ./client.sh") as caught:
            trust.copy_trusted([case_of(folder)], False, copies)
        assert caught.value.hint == "read what is in the folder, then use --trust once"
        for attempt in (True, False):
            place = tmp_path / f"again-{number}-{attempt}"
            place.mkdir()
            assert trust.copy_trusted([case_of(folder)], attempt, place) == {folder: place / "workload-1"}


def test_what_runs_is_the_copy_that_was_asked_about(tmp_path: Path) -> None:
    folder = workload(tmp_path)
    copies = tmp_path / "copies"
    copies.mkdir()
    copy = trust.copy_trusted([case_of(folder)], True, copies)[folder]
    (folder / "client.sh").write_text("#!/bin/sh\nrm -rf /\n")
    assert (copy / "client.sh").read_text() == "#!/bin/sh\necho queries=1\n"
    assert (copy / "client.sh").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("argv", ["./other.sh", "/bin/sh"])
def test_the_tables_that_run_are_those_of_the_trusted_copy(tmp_path: Path, argv: str) -> None:
    """The author puts other text in place while powerprof parses, and the trusted text back before it copies."""
    folder = workload(tmp_path)
    (tmp_path / "first").mkdir()
    trust.copy_trusted([case_of(folder)], True, tmp_path / "first")
    (folder / "workload.toml").write_text(_TOML.replace("./client.sh", argv))
    case = case_of(folder)
    (folder / "workload.toml").write_text(_TOML)
    (tmp_path / "second").mkdir()
    (tmp_path / "third").mkdir()
    for cases, place in (([case], "second"), ([case_of(folder), case], "third")):
        with pytest.raises(DataError, match="was changed while it was read"):
            trust.copy_trusted(cases, False, tmp_path / place)


@pytest.mark.parametrize("swapped", ["file", "link in a folder", "folder"])
def test_a_file_that_becomes_a_link_is_not_read(tmp_path: Path, swapped: str) -> None:
    """The files are read seconds after they were checked, with root's rights."""
    folder, elsewhere = tmp_path / "theirs", tmp_path / "elsewhere"
    for place in (folder / "inner", elsewhere / "inner"):
        place.mkdir(parents=True)
        (place / "a.sql").write_text(f"SELECT '{place.parent.name}'")
    (folder / "inner/b.sql").symlink_to("a.sql")
    load = 'kind = "statements"\nfiles = ["inner/a.sql", "inner/b.sql"]'
    (folder / "workload.toml").write_text(re.sub(r"kind = .*\nargv.*", lambda match: load, _TOML))
    (tmp_path / "link").symlink_to(folder)
    case = case_of(tmp_path / "link")
    assert case.load_statements() == ["SELECT 'theirs'"] * 2
    victim = {"file": folder / "inner/a.sql", "link in a folder": folder / "inner", "folder": folder}[swapped]
    target = elsewhere / victim.relative_to(folder)
    victim.rename(tmp_path / "away")
    victim.symlink_to(target)
    with pytest.raises(DataError, match="is a link that leaves"):
        case.load_statements()


def test_a_digest_changes_with_every_change_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/b").write_text("1")
    (tmp_path / "c").write_text("")
    seen = {trust.tree_digest(tmp_path)}
    for change in (
        lambda: (tmp_path / "a/b").write_text("2"),
        lambda: (tmp_path / "a/b").chmod(0o755),
        lambda: (tmp_path / "c").rename(tmp_path / "d"),
        lambda: (tmp_path / "e").symlink_to("a"),
        lambda: (tmp_path / "f").mkdir(),
    ):
        change()
        seen.add(trust.tree_digest(tmp_path))
    assert len(seen) == 6


_SERVER = 'schema = "powerprof.workload/1"\nname = "theirs"\ntitle = "t"\n{}[load]\nkind = "none"\n[conditions.only]\n'


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ('[server.environment]\nLD_PRELOAD = "/tmp/evil.so"\n', "server.environment: LD_PRELOAD"),
        ('[server.environment]\nOPENSSL_CONF = "/tmp/evil.cnf"\n', "server.environment: OPENSSL_CONF"),
        ('[server.environment]\nOPENSSL_MODULES = "/tmp"\n', "server.environment: OPENSSL_MODULES"),
        ('[server.environment]\nLIBMYSQL_PLUGINS = "evil"\n', "server.environment: LIBMYSQL_PLUGINS"),
        ('[server.environment]\nKRB5_CONFIG = "/tmp/evil.conf"\n', "server.environment: KRB5_CONFIG"),
        ('[server.environment]\nPATH = "/tmp"\n', "server.environment: PATH"),
        ('[server.environment]\nmalloc_arena_max = "1"\n', "server.environment: malloc_arena_max"),
        ('[server.my_cnf]\nplugin_load_add = "evil.so"\n', "server.my_cnf: plugin_load_add"),
        ('[server.my_cnf]\nloose-plugin-lo = "evil.so"\n', "server.my_cnf: loose-plugin-lo"),
        ('[server.my_cnf]\nloose-loose-plugin-load = "evil.so"\n', "server.my_cnf: loose-loose-plugin-load"),
        ('[server.my_cnf]\nenable-plugin-load = "evil.so"\n', "server.my_cnf: enable-plugin-load"),
        ('[server.my_cnf]\n"hot.plugin_load_add" = "evil.so"\n', "server.my_cnf: hot.plugin_load_add"),
        ('[server.my_cnf]\n"max_x.key_buffer_size" = 1\n', "server.my_cnf: max_x.key_buffer_size"),
        ('[server.my_cnf]\nlog_error_services = "component_evil"\n', "server.my_cnf: log_error_services"),
        ('[server.my_cnf]\ncharacter_sets_dir = "evil"\n', "server.my_cnf: character_sets_dir"),
        ('[server.my_cnf]\ninnodb_undo_directory = "/tmp"\n', "server.my_cnf: innodb_undo_directory"),
        (
            '[server]\nkind = "postgresql"\npostgresql_conf = { "plperl.on_init" = "die" }\n',
            "server.postgresql_conf: plperl.on_init",
        ),
        (
            '[server]\nkind = "postgresql"\npostgresql_conf = { a_setting_of_tomorrow = 1 }\n',
            "server.postgresql_conf: a_setting_of_tomorrow",
        ),
        (
            '[topology]\nkind = "ring"\ncount = 2\nmembers.node-2.my_cnf = { skip-loose-plugin-load = "evil" }\n',
            "topology.members.node-2.my_cnf: skip-loose-plugin-load",
        ),
    ],
)
def test_other_ways_to_run_something(tmp_path: Path, keys: str, what: str) -> None:
    assert trust.find_program_key(case_of(workload(tmp_path, _SERVER.format(keys)))) == what


def _tunes(name: str, family: Family, value: str = "1") -> bool:
    return settings.find_reserved_setting(name, family) is None and not settings.does_setting_need_trust(
        name, value, family
    )


def test_settings_that_only_tune_are_not_asked_about(tmp_path: Path) -> None:
    keys = """[server]
environment = { MALLOC_ARENA_MAX = "1" }
my_cnf = { loose-skip-innodb_doublewrite = true, maximum-sort_buffer_size = "1M", Skip-Name-Resolve = true }
"""
    assert trust.find_program_key(case_of(workload(tmp_path, _SERVER.format(keys)))) is None


def test_a_sweep_over_a_variable_is_asked_about(tmp_path: Path) -> None:
    loaded = read_workload(workload(tmp_path, _SERVER.format("")))
    case = resolve(loaded, "only", {"server.environment.OPENSSL_CONF": "/tmp/evil.cnf"})
    assert trust.find_program_key(case) == "server.environment: OPENSSL_CONF"


@pytest.mark.parametrize("setting", ["plugin_load_add", "plugin_load"])
def test_every_spelling_that_loads_a_plugin_needs_trust(mariadbd: Path, setting: str) -> None:
    """The installed server judges: it reports the library that it cannot load."""
    names = [setting[:length] for length in range(8, len(setting) + 1)]
    prefixes = ("loose-", "enable_", "Loose-loose-", "skip-loose_", "hot.", "loose-a.b-c.", "maximum-autoset-")
    names += [prefix + setting for prefix in prefixes]
    loaded = []
    for name in names:
        words = [mariadbd, "--no-defaults", "--user=mysql", f"--{name}=powerprof_evil", "--verbose", "--help"]
        output = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
        if "Can't open shared library" in output.stdout + output.stderr:
            loaded.append(name)
    assert {f"loose-loose-{setting}".capitalize(), f"hot.{setting}", setting} <= set(loaded)
    assert [name for name in loaded if not settings.does_setting_need_trust(name, "powerprof_evil", "mysql")] == []


def test_no_setting_of_the_installed_servers_that_runs_or_loads_something_counts_as_tuning(mariadbd: Path) -> None:
    words = [mariadbd, "--no-defaults", "--user=mysql", "--verbose", "--help"]
    output = subprocess.run(words, capture_output=True, text=True, timeout=30, check=True).stdout
    names = set(re.findall(r"^  (?:-., )?--([a-z0-9-]+)", output, re.MULTILINE))
    assert len(names) > 400
    tuning = {name for name in names if _tunes(name, "mysql")}
    assert [name for name in tuning if re.search("plugin|^init|ssl|sets-dir|wsrep|feedback|malloc", name)] == []
    # Some of them may be paths: then the value needs trust.
    assert not any(_tunes(name, "mysql", "/tmp/x") for name in tuning)
    shortened = {name[:length] for name in names - tuning for length in range(1, len(name))}
    assert [name for name in shortened - names if _tunes(name, "mysql")] == []


def test_no_setting_of_postgresql_that_runs_or_loads_something_counts_as_tuning() -> None:
    build = postgresql.find_build()
    done = programs.run([str(build.binary), "--describe-config"], user=find_server_account())
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    tuning = [(name, group, kind) for name, _, group, kind, *_ in rows if _tunes(name, "postgresql")]
    assert len(tuning) > 150
    groups = "Preloading|File Locations|Archiv|SSL|/ Authentication"
    assert {name for name, group, _ in tuning if re.search(groups, group)} == set()
    texts = {"DateStyle", "TimeZone", "log_line_prefix", "log_timezone", "wal_consistency_checking"}
    assert {name for name, _, kind in tuning if kind == "STRING"} <= texts


def test_shipped_workloads_are_data() -> None:
    from powerprof.workloads.catalogue import list_folders

    for folder in list_folders():
        loaded = read_workload(folder)
        for name in loaded.definition.conditions:
            case = resolve(loaded, name)
            key = trust.find_program_key(case)
            assert trust.is_shipped(case)
            assert key is None or (folder.name == "power-profiles" and key.startswith("host: ")), name


def test_the_command_line_asks_and_the_program_is_not_root(
    attacker: Attacker, mariadbd: Path, powerprof_cli: Cli
) -> None:
    said = attacker.secret.parent.parent / "everybody"
    said.mkdir()
    said.chmod(0o777)
    # It fails as root, and reaches no folder of the host's.
    folder = workload(
        attacker.home, program=f'[ "$(id -u)" != 0 ] || exit 1\ntouch {said}/ran\nsleep 0.3; echo queries=10\n'
    )
    words = ["run", str(folder), "--repeat", "2", "--duration", "0.3"]
    refused = powerprof_cli(words)
    assert refused.code == 2
    assert "runs its own programs" in refused.err and "--trust" in refused.err
    done = powerprof_cli([*words, "--trust"])
    assert done.code == 0, done.err
    assert list(said.iterdir()) == []
    again = powerprof_cli(words)
    assert again.code == 0, again.err


def test_a_configuration_of_openssl_is_not_read_by_the_server_without_trust(
    attacker: Attacker, mariadbd: Path, powerprof_cli: Cli
) -> None:
    folder = workload(attacker.home, _SERVER.format('[server.environment]\nOPENSSL_CONF = "/tmp/evil.cnf"\n'))
    refused = powerprof_cli(["run", str(folder), "--repeat", "2", "--duration", "0.3"])
    assert refused.code == 2, refused.out
    assert "could run its author's code in the server (server.environment: OPENSSL_CONF)" in refused.err
    assert "hint: read what is in the folder, then use --trust once" in refused.err
