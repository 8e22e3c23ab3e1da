# SPDX-License-Identifier: Apache-2.0
"""Settings of PostgreSQL in postgresql.auto.conf: written, loaded, restored literally, after a restart too."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from powerprof.database import sql
from powerprof.database.base import Login, StatementError
from powerprof.reversible import postgres_settings
from powerprof.reversible.journal import Journal, JournalState, SavedSetting, restore_orphaned_settings, write_state
from powerprof.reversible.kinds import AppliedChange
from powerprof.reversible.postgres_settings import UNSET, DataFolder, PostgresSetting, _literal, _move_to
from powerprof.system.errors import PowerprofError
from tests.programs.answers import Answers

FOLDER = DataFolder(104, "/var/lib/postgresql/15/main", 4711)


class FileServer:
    """A server with settings in postgresql.auto.conf, and those that it has loaded. Its process is 79."""

    def __init__(self) -> None:
        self.file = {"log_line_prefix": "%m "}
        self.loaded, self.loads = dict(self.file), 3
        self.error: tuple[str, str] | None = None
        self.is_up = True
        self.connection = Answers(
            {
                "f.setting": lambda text: [(value,) for name, value in self.file.items() if f"'{name}'" in text],
                "f.applied": lambda _: [("t", None, "auto") if self.error is None else ("f", *self.error)],
                "ALTER SYSTEM SET": self._alter,
                "pg_conf_load_time": lambda _: [(f"load {self.loads}",)],
                "pg_reload_conf": self._reload,
            },
            "postgresql",
        )

    def setting(self, name: str, value: str) -> PostgresSetting:
        login = Login(user="u", socket=Path("/run/s"), password="s3cret", family="postgresql")
        return PostgresSetting(login.to_fields(), name, value, FOLDER)

    def find(self) -> int:
        if not self.is_up:
            raise PowerprofError("the server of /var/lib/postgresql/15/main does not run", "start it")
        return 79

    def _alter(self, text: str) -> list[tuple[str]]:
        name, _, value = text.removeprefix("ALTER SYSTEM SET ").partition(" = ")
        if value == "E'many'":
            raise StatementError("invalid value [22023]", None, 1)
        self.file.pop(name, None)
        if value != "DEFAULT":
            self.file[name] = value[2:-1].replace("\\\\", "\\").replace("''", "'")
        return []

    def _reload(self, _: str) -> list[tuple[str]]:
        if self.error is None:
            self.loaded, self.loads = dict(self.file), self.loads + 1
        return [("t",)]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FileServer:
    made = FileServer()
    monkeypatch.setattr(sql, "connect", lambda *_, **__: nullcontext(made.connection))
    monkeypatch.setattr(DataFolder, "find_server", lambda _: made.find())
    monkeypatch.setattr(postgres_settings, "_LOAD_S", 0.0)
    return made


@pytest.mark.parametrize("name", ["work_mem", "log_line_prefix"])
def test_a_setting_is_restored_with_its_text_or_its_absence(server: FileServer, name: str) -> None:
    file, setting = dict(server.file), server.setting(name, r"it's \ %p")
    before = setting.read()
    assert before == file.get(name, UNSET)
    change = AppliedChange(setting, before)
    change.since = setting.write(setting.value)
    assert change.since == setting.value == server.loaded[name]
    change.put_back()
    assert server.file == server.loaded == file


def test_the_value_of_another_person_stays(server: FileServer) -> None:
    setting = server.setting("work_mem", "9MB")
    change = AppliedChange(setting, UNSET, setting.write("9MB"))
    server.file["work_mem"] = "12MB"
    change.put_back()
    assert server.file["work_mem"] == "12MB"


def test_a_written_file_is_loaded_after_the_writer_was_killed(server: FileServer) -> None:
    setting = server.setting("work_mem", "9MB")
    change = AppliedChange(setting, UNSET, setting.write("9MB"))
    del server.file["work_mem"]
    change.put_back()
    assert "work_mem" not in server.loaded


def test_a_refused_value_and_unloaded_files_are_errors(server: FileServer) -> None:
    with pytest.raises(PowerprofError, match=r"work_mem=many: ALTER failed \(invalid value"):
        server.setting("work_mem", "many").write("many")
    server.error = ("syntax error", "/etc/postgresql.conf")
    with pytest.raises(PowerprofError, match=r"cannot load its configuration \(/etc/postgresql.conf: syntax error\)"):
        server.setting("work_mem", "9MB").read()
    with pytest.raises(PowerprofError, match="does not load its configuration"):
        server.setting("work_mem", "9MB").load()


@pytest.mark.parametrize(
    ("value", "text"), [(UNSET, "DEFAULT"), ("8MB", "E'8MB'"), (r"it's \n", r"E'it''s \\n'"), ("DEFAULT", "E'DEFAULT'")]
)
def test_values_are_quoted(value: str, text: str) -> None:
    assert _literal(value) == text


def test_statements_to_type(server: FileServer) -> None:
    setting = server.setting("work_mem", "8MB")
    assert setting.by_hand("a'b") == "ALTER SYSTEM SET work_mem = 'a''b'; SELECT pg_catalog.pg_reload_conf()"
    assert setting.by_hand(UNSET) == "ALTER SYSTEM RESET work_mem; SELECT pg_catalog.pg_reload_conf()"


@pytest.mark.parametrize(
    ("socket", "moved"),
    [("/proc/7/root/run/s", "/proc/79/root/run/s"), ("/run/s", "/run/s"), ("/proc/7/root", "/proc/7/root")],
)
def test_a_socket_is_that_of_the_present_process(socket: str, moved: str) -> None:
    assert _move_to(Path(socket), 79) == Path(moved)


@pytest.mark.parametrize("is_loaded", [True, False])
def test_the_next_start_restores_and_waits_for_the_server(
    server: FileServer, folders: tuple[Path, Path], is_loaded: bool
) -> None:
    setting = server.setting("work_mem", "9MB")
    killed = Journal([SavedSetting(setting, UNSET, 77, 4242)])
    killed._open()
    setting.write("9MB")
    write_state(killed.handle, JournalState(since=["9MB"] if is_loaded else None))
    os.close(killed.handle)
    killed._handle = None
    file = folders[1] / killed._name
    assert "s3cret" not in file.read_text()
    server.is_up = False
    (line,) = restore_orphaned_settings()
    assert "(the server of /var/lib/postgresql/15/main does not run)" in line
    assert "ALTER SYSTEM RESET work_mem" in line
    server.is_up = True
    assert restore_orphaned_settings() == [f"work_mem is {UNSET} again: a powerprof that was killed had left it at 9MB"]
    assert server.loaded == {"log_line_prefix": "%m "} and not file.exists()
