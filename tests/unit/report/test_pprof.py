# SPDX-License-Identifier: Apache-2.0
"""OTLP messages, and the profiles of the last intervals."""

from __future__ import annotations

import gzip
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import ExportProfilesServiceRequest
from opentelemetry.proto.profiles.v1development.profiles_pb2 import Profile, ProfilesData, ProfilesDictionary

from powerprof.live.intervals import LiveInterval
from powerprof.report.exports import export
from powerprof.report.protobuf import number
from powerprof.report.recent_profiles import PROFILES, RecentProfiles
from powerprof.system.errors import UsageError
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


def at(second: int, one: LiveInterval) -> LiveInterval:
    stamp = f"2026-11-22T08:{second // 60:02}:{second % 60:02}.500Z"
    return msgspec.structs.replace(one, ended_at=stamp)


def of_recent(profiles: RecentProfiles, name: str, seconds: float = 0) -> dict[tuple[str, ...], int]:
    """Return the values of a profile by stack, innermost first."""
    data = profiles.render(name, seconds)
    assert data is not None
    types, samples = decoded(data)
    assert types == [PROFILES[name]]
    return {frames: value for frames, (value,) in samples}


def test_profiles_of_an_interval_add_up_to_the_host() -> None:
    deep = msgspec.structs.replace(row("poll", 3, 0.5), stack=("poll", "wait_for_data", "handle_connection"))
    profiles = RecentProfiles()
    assert profiles.render("wakeups", 0) is None
    profiles.add(at(10, interval(deep, row("page_cleaner", 2, 0.25), untraced=4, c0_s=1.5)))
    exits, c0_ns = of_recent(profiles, "wakeups"), of_recent(profiles, "c0")
    key = deep.key
    stack = ("poll", "wait_for_data", "handle_connection", key.thread, key.process)
    kernel = ("page_cleaner", "page_cleaner", "mariadbd")
    assert exits == {stack: 3, kernel: 2, ("other",): 4}
    assert c0_ns == {stack: 5 * 10**8, kernel: 25 * 10**7, ("other",): 75 * 10**7}
    data = profiles.render("wakeups", 0)
    assert data is not None
    times = {field: value for field, value in fields(gzip.decompress(data)) if field in (9, 10)}
    begun_ns = round(datetime(2026, 11, 22, 8, 0, 0, 500_000, tzinfo=UTC).timestamp() * 1e9)
    assert times == {9: begun_ns, 10: 10 * 10**9}


# Alloy requests one second less than its scrape interval, Parca the scrape interval. Intervals are not exact.
@pytest.mark.parametrize(
    ("seconds", "count"), [(0, 1), (9, 1), (10, 1), (14.9, 1), (19, 2), (20, 2), (29, 3), (30, 3), (59, 6), (10**9, 6)]
)
def test_seconds_are_rounded_to_whole_intervals(seconds: float, count: int) -> None:
    profiles = RecentProfiles()
    for exits in range(1, 7):
        profiles.add(at(10 * exits, interval(row("poll", exits), window_s=9.98 if exits % 2 else 10.02)))
    newest = sum(range(7 - count, 7))
    assert sum(of_recent(profiles, "wakeups", seconds).values()) == newest


def test_recent_profiles_are_bounded() -> None:
    """The time, the stacks and the profiles. Stacks beyond the limit are summed, the cheapest first."""
    profiles = RecentProfiles(kept_s=40.0, most_stacks=11)
    for exits in range(1, 10):
        profiles.add(at(10 * exits, interval(row("poll", exits))))
    assert sum(of_recent(profiles, "wakeups", 1000).values()) == 9 + 8 + 7 + 6
    profiles.add(at(100, interval(*(row(f"f{cost}", cost) for cost in range(1, 9)))))
    assert sum(of_recent(profiles, "wakeups", 1000).values()) == 36 + 9
    profiles.add(at(110, interval(*(row(f"f{cost}", cost) for cost in range(1, 31)))))
    exits = of_recent(profiles, "wakeups", 1000)
    assert (len(exits), exits["f30", "page_cleaner", "mariadbd"], exits[("other",)]) == (11, 30, 210)
    assert sum(exits.values()) == sum(range(1, 31))


def test_a_profile_is_made_once_per_interval() -> None:
    profiles = RecentProfiles()
    profiles.add(at(10, interval(row("poll", 1))))
    first = profiles.render("wakeups", 5)
    assert profiles.render("wakeups", 14) is first
    assert profiles.render("c0", 14) != first
    profiles.add(at(20, interval(row("poll", 1))))
    assert profiles.render("wakeups", 5) != first
