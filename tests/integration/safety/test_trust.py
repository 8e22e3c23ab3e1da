# SPDX-License-Identifier: Apache-2.0
"""A workload of somebody that brings programs: asked about once, remembered by content, never run as root."""

from __future__ import annotations

from pathlib import Path

import pytest

from powerprof.errors import UsageError
from powerprof.workloads import trust
from powerprof.workloads.reading import Case, read_workload, resolve
from tests.conftest import Cli
from tests.integration.safety.conftest import Attacker

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
            trust.check([case_of(folder)], False, copies)
        assert caught.value.hint == "read what is in the folder, then use --trust once"
        for attempt in (True, False):
            place = tmp_path / f"again-{number}-{attempt}"
            place.mkdir()
            assert trust.check([case_of(folder)], attempt, place) == {folder: place / "workload-1"}


def test_what_runs_is_the_copy_that_was_asked_about(tmp_path: Path) -> None:
    folder = workload(tmp_path)
    copies = tmp_path / "copies"
    copies.mkdir()
    copy = trust.check([case_of(folder)], True, copies)[folder]
    (folder / "client.sh").write_text("#!/bin/sh\nrm -rf /\n")
    assert (copy / "client.sh").read_text() == "#!/bin/sh\necho queries=1\n"
    assert (copy / "client.sh").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ('[server.environment]\nLD_PRELOAD = "/tmp/evil.so"\n', "server.environment: LD_PRELOAD"),
        ('[server.my_cnf]\nplugin_load_add = "evil.so"\n', "server.my_cnf: plugin_load_add"),
        ('[server.my_cnf]\nloose-plugin-lo = "evil.so"\n', "server.my_cnf: loose-plugin-lo"),
    ],
)
def test_other_ways_to_run_something(tmp_path: Path, keys: str, what: str) -> None:
    head = 'schema = "powerprof.workload/1"\nname = "theirs"\ntitle = "t"\n'
    toml = f'{head}{keys}[load]\nkind = "none"\n[conditions.only]\n'
    assert trust.runs_programs(case_of(workload(tmp_path, toml))) == what


def test_shipped_workloads_are_data() -> None:
    from powerprof.workloads.catalogue import folders

    for folder in folders():
        loaded = read_workload(folder)
        for name in loaded.definition.conditions:
            case = resolve(loaded, name)
            assert trust.is_shipped(case) and trust.runs_programs(case) is None


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
