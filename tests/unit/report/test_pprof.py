# SPDX-License-Identifier: Apache-2.0
"""OTLP messages, and the folder with one profile per minute."""

from __future__ import annotations

import gzip
import os
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import ExportProfilesServiceRequest
from opentelemetry.proto.profiles.v1development.profiles_pb2 import Profile, ProfilesData, ProfilesDictionary

from powerprof.live.intervals import LiveInterval
from powerprof.report.exports import export
from powerprof.report.pprof import ProfileFolder, number
from powerprof.system.errors import PowerprofError, UsageError
from powerprof.system.folders import Folder
from tests.unit.live.intervals import interval, row
from tests.unit.report.sample_records import HOSTILE, attribution, comparison, on_cpu
from tests.unit.report.test_exports import decoded, fields


def _read(record: msgspec.Struct) -> ProfilesData:
    data: ProfilesData = ProfilesData.FromString(export(record, "otlp"))
    return data


def _profiles(data: ProfilesData) -> dict[str, Profile]:
    words = data.dictionary.string_table
    (about,) = data.resource_profiles
    (scope,) = about.scope_profiles
    return {words[profile.sample_type.type_strindex]: profile for profile in scope.profiles}


def _attributes(dictionary: ProfilesDictionary, indices: Any) -> dict[str, str | int]:
    found: dict[str, str | int] = {}
    for index in indices:
        one = dictionary.attribute_table[index]
        value = one.value
        found[dictionary.string_table[one.key_strindex]] = getattr(value, str(value.WhichOneof("value")))
    assert len(found) == len(indices)
    return found


def _frames(dictionary: ProfilesDictionary, stack: int) -> list[str]:
    """Innermost first."""
    words = dictionary.string_table
    places = [dictionary.location_table[index] for index in dictionary.stack_table[stack].location_indices]
    return [words[dictionary.function_table[line.function_index].name_strindex] for p in places for line in p.lines]


def test_each_row_is_a_sample_with_its_thread_and_stack() -> None:
    record = attribution()
    data = _read(record)
    exits = _profiles(data)["idle_exits"]
    found = {
        (
            _attributes(data.dictionary, sample.attribute_indices)["thread.name"],
            *_frames(data.dictionary, sample.stack_index),
        ): list(sample.values)
        for sample in exits.samples
    }
    assert found == {(row.thread.label, *(frame.label for frame in row.stack)): [row.count] for row in record.wakeups}
    first = _attributes(data.dictionary, exits.samples[0].attribute_indices)
    row = record.wakeups[0]
    assert first["process.pid"] == record.target.pid and first["process.executable.name"] == "mariadbd"
    assert (first["powerprof.mechanism"], first["powerprof.origin"]) == (row.mechanism, row.origin)


def test_c0_time_is_a_second_profile_of_the_same_window() -> None:
    record = attribution()
    profiles = _profiles(_read(record))
    assert list(profiles) == ["idle_exits", "c0"]
    total = sum(value for sample in profiles["c0"].samples for value in sample.values)
    assert total == pytest.approx(sum(row.c0_ms for row in record.wakeups) * 1e6, abs=len(record.wakeups))
    for profile in profiles.values():
        assert profile.time_unix_nano == int(datetime.fromisoformat(record.started_at).timestamp() * 1e9)
        assert profile.duration_nano == 10_000_000_000 and len(profile.profile_id) == 16
    assert len({profile.profile_id for profile in profiles.values()}) == 2
    assert export(record, "otlp") == export(record, "otlp")


def test_the_resource_is_the_server_and_its_host() -> None:
    (about,) = _read(attribution()).resource_profiles
    assert {one.key: one.value.string_value for one in about.resource.attributes} == {
        "service.name": "mariadbd",
        "host.name": "db1",
    }


def test_exits_are_split_by_idle_state_if_all_states_are_known() -> None:
    record = attribution()
    row = replace(
        record.wakeups[0],
        count=25,
        states={"C1": 20, "C6": 5},
        thread=replace(record.wakeups[0].thread, unit="db.service"),
    )
    other = replace(record.wakeups[1], count=10, states={"C1": 9})
    data = _read(replace(record, wakeups=[row, other]))
    said = [
        (about.get("powerprof.idle_state"), about.get("powerprof.unit"), sample.values[0])
        for sample in _profiles(data)["idle_exits"].samples
        for about in [_attributes(data.dictionary, sample.attribute_indices)]
    ]
    assert said == [("C1", "db.service", 20), ("C6", "db.service", 5), (None, None, 10)]


def test_kernel_functions_have_a_frame_type() -> None:
    record = on_cpu()
    data = _read(record)
    samples = _profiles(data)["samples_of_C0"].samples
    assert sum(sample.values[0] for sample in samples) == sum(row.count for row in record.stacks)
    kernel = {frame.label for row in record.stacks for frame in row.stack if frame.kernel}
    words, said = data.dictionary.string_table, set()
    for place in data.dictionary.location_table:
        if _attributes(data.dictionary, place.attribute_indices).get("profile.frame.type") == "kernel":
            said.add(words[data.dictionary.function_table[place.lines[0].function_index].name_strindex])
    assert said == kernel != set()


def test_tables_begin_empty_and_have_no_duplicates() -> None:
    dictionary = _read(attribution()).dictionary
    for name in ("mapping", "location", "function", "link", "attribute", "stack"):
        table = getattr(dictionary, f"{name}_table")
        assert not table[0].ListFields()
        assert max(Counter(one.SerializeToString(deterministic=True) for one in table).values()) == 1
    assert dictionary.string_table[0] == "" and len(set(dictionary.string_table)) == len(dictionary.string_table)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_arrive_unchanged(name: str) -> None:
    record = attribution()
    row = record.wakeups[0]
    frames = [replace(row.stack[0], function=name), *row.stack[1:]]
    data = _read(replace(record, wakeups=[replace(row, stack=frames)]))
    sample = _profiles(data)["idle_exits"].samples[0]
    expected = name.encode("utf-8", "replace").decode()
    assert _frames(data.dictionary, sample.stack_index)[0] == expected


def test_comparison_has_no_otlp_profile() -> None:
    data = export(attribution(), "otlp")
    assert ExportProfilesServiceRequest.FromString(data).SerializeToString(
        deterministic=True
    ) == ProfilesData.FromString(data).SerializeToString(deterministic=True)
    with pytest.raises(UsageError, match=r"has no \.otlp file"):
        export(comparison(), "otlp")


def test_negative_numbers_are_twos_complement() -> None:
    assert number(1, -1) == b"\x08" + b"\xff" * 9 + b"\x01" and number(1, 0) == b""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """One that is ours alone: for root no one below a folder of everybody's that is not sticky."""
    made = tmp_path / "profiles"
    made.mkdir(mode=0o755)
    return made


def at(second: int, one: LiveInterval) -> LiveInterval:
    stamp = f"2026-11-22T08:{second // 60:02}:{second % 60:02}.500Z"
    return msgspec.structs.replace(one, ended_at=stamp)


def named(profiles: Path) -> list[str]:
    return sorted(path.name for path in profiles.iterdir())


def test_profile_of_a_minute_sums_to_the_host(folder: Path) -> None:
    deep = msgspec.structs.replace(row("poll", 3, 0.5), stack=("poll", "wait_for_data", "handle_connection"))
    said: list[str] = []
    with ProfileFolder(folder, said.append) as profiles:
        for number in range(1, 7):
            profiles.add(at(10 * number, interval(deep, row("page_cleaner", 2, 0.25), untraced=4)))
        assert named(folder) == ["powerprof-20261122T080100Z.pb.gz"]
        profiles.add(at(70, interval(deep)))
    assert (named(folder), said) == (["powerprof-20261122T080100Z.pb.gz"], [])
    path = folder / named(folder)[0]
    types, samples = decoded(path.read_bytes())
    assert types == [("idle_exits", "count"), ("c0", "nanoseconds")]
    found = dict(samples)
    key = deep.key
    assert found[("poll", "wait_for_data", "handle_connection", key.thread, key.process)] == [18, 3 * 10**9]
    assert found[("other",)][0] == 24
    assert sum(values[0] for values in found.values()) == 6 * 9
    begun_ns = round(datetime(2026, 11, 22, 8, 0, 0, 500_000, tzinfo=UTC).timestamp() * 1e9)
    times = {field: value for field, value in fields(gzip.decompress(path.read_bytes())) if field in (9, 10)}
    assert times == {9: begun_ns, 10: 60 * 10**9}
    assert path.stat().st_mode & 0o777 == 0o640


def test_old_profiles_are_removed_and_other_files_stay(folder: Path) -> None:
    (folder / "notes.txt").write_text("mine")
    with ProfileFolder(folder, lambda _: None, kept=3, every_s=10.0) as profiles:
        for number in range(1, 8):
            profiles.add(at(10 * number, interval(row("poll", 1))))
    assert named(folder) == [
        "notes.txt",
        "powerprof-20261122T080050Z.pb.gz",
        "powerprof-20261122T080100Z.pb.gz",
        "powerprof-20261122T080110Z.pb.gz",
    ]


def test_profiles_from_the_future_are_removed_first(folder: Path) -> None:
    with ProfileFolder(folder, lambda _: None, kept=3, every_s=10.0) as profiles:
        for second in (600, 610, 620, 10, 20):
            profiles.add(at(second, interval(row("poll", 1), window_s=10.0)))
        assert named(folder) == [f"powerprof-20261122T08{stamp}Z.pb.gz" for stamp in ("0010", "0020", "1020")]


def test_full_disk_is_reported_once_and_export_continues(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    full, write = [True], Folder.write

    def maybe(self: Folder, name: str, data: bytes, mode: int = 0o600) -> None:
        if full[0]:
            raise OSError(28, os.strerror(28))
        write(self, name, data, mode)

    monkeypatch.setattr(Folder, "write", maybe)
    with ProfileFolder(folder, said.append, every_s=10.0) as profiles:
        for number in range(1, 4):
            profiles.add(at(10 * number, interval(row("poll", 1))))
        full[0] = False
        profiles.add(at(40, interval(row("poll", 1))))
    assert said == [f"cannot write a profile to {folder} (no space left on device)"]
    assert named(folder) == ["powerprof-20261122T080040Z.pb.gz"]


def test_folder_writable_by_others_is_refused(folder: Path) -> None:
    folder.chmod(0o777)
    with pytest.raises(PowerprofError, match=r"cannot write profiles to .*others .*may write to"):
        ProfileFolder(folder, lambda _: None)
    with pytest.raises(PowerprofError, match="no such file"):
        ProfileFolder(folder / "missing", lambda _: None)


def test_root_refuses_folders_of_other_accounts(folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("no capability: root (sudo make test)")
    theirs = folder / "theirs"
    theirs.mkdir()
    os.chown(theirs, 65534, 65534)
    with pytest.raises(PowerprofError, match="belongs to user 65534"):
        ProfileFolder(theirs, lambda _: None)
