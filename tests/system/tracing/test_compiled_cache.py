# SPDX-License-Identifier: Apache-2.0
"""A program that was compiled once is loaded without a compiler, and only if it is whole."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from powerprof.system import paths
from powerprof.system.errors import PowerprofError
from powerprof.tracing.bpf import compiled_cache, objects
from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.bpf.objects import Compiled
from powerprof.tracing.idle import trace_exits


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("POWERPROF_CARRIED", "0")
    monkeypatch.setattr(paths, "cache_folder", lambda kind: _made(tmp_path / kind))
    return tmp_path / "bpf"


def _made(path: Path) -> Path:
    path.mkdir(mode=0o700, exist_ok=True)
    return path


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts of idle.bpf.c that were compiled; trials of features are compiled too."""
    found: list[str] = []
    compile_text = compiled_cache._compile

    def noted(text: str) -> Compiled:
        if "define CAUSE_SLOTS" in text:
            found.append(text)
        return compile_text(text)

    monkeypatch.setattr(compiled_cache, "_compile", noted)
    return found


def test_the_second_tracer_is_loaded_from_the_cache(root_bpf: None, cache: Path, compilations: list[str]) -> None:
    before = set(sys.modules)
    for _ in range(2):
        with trace_exits() as tracer:
            assert tracer.program.slots("causes") > 1000
    assert len(compilations) == 1
    (kept,) = cache.glob("idle-*")  # the types of the kernel are kept too
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert not {name for name in set(sys.modules) - before if name.partition(".")[0] == "bcc"}
    kept.write_bytes(kept.read_bytes()[:-1])
    with trace_exits():
        pass
    assert len(compilations) == 2  # a cut file is not loaded
    assert kept.read_bytes()


def test_other_definitions_are_another_program(root_bpf: None, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []

    def nothing(text: str) -> Compiled:
        compiled.append(text)
        return Compiled(maps=[], programs=[])

    monkeypatch.setattr(compiled_cache, "_compile", nothing)
    for slots in (100, 200, 100):
        with LoadedProgram("idle.bpf.c", {"CAUSE_SLOTS": slots}):
            pass
    assert [text.splitlines()[0] for text in compiled] == ["#define CAUSE_SLOTS 100", "#define CAUSE_SLOTS 200"]
    assert len(list(cache.iterdir())) == 2


def test_a_source_that_does_not_compile_is_one_line(
    root_bpf: None, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "read_source", lambda name: "int broken(")
    with pytest.raises(PowerprofError, match="error: expected parameter declarator") as error, trace_exits():
        pass
    assert "\n" not in str(error.value)
    assert not list(cache.iterdir())
