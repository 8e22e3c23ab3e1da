# SPDX-License-Identifier: Apache-2.0
"""Privileges are given up when nothing is left to open.

Kernels of Debian and Ubuntu want CAP_SYS_ADMIN for perf events, this one may not: only the order can be tested here.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from powerprof.attribution.profile import count_functions, profile_target
from powerprof.attribution.requests import FunctionsRequest, ProfileRequest
from powerprof.cli.targets import ServerOptions, TargetOptions
from powerprof.system import capabilities
from powerprof.tracing.bpf import sampler, syscalls, uprobe_links
from tests.programs.ground_truth import build

pytestmark = pytest.mark.usefixtures("root_bpf")


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is opened and given up from now on, in this order; nothing is given up."""
    said: list[str] = []

    def noted(word: str, action: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            said.append(word)
            return action(*arguments, **named)

        return call

    monkeypatch.setattr(sampler, "open_sampler", noted("opened", sampler.open_sampler))
    monkeypatch.setattr(uprobe_links, "open_event", noted("opened", uprobe_links.open_event))
    monkeypatch.setattr(syscalls, "create_link", noted("opened", syscalls.create_link))
    monkeypatch.setattr(capabilities, "drop_privileges", noted("given up", lambda *_: None))
    return said


@pytest.fixture
def target(tmp_path: Path) -> Iterator[TargetOptions]:
    process = subprocess.Popen([build("sleepers", tmp_path), "60"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    yield TargetOptions(pid=[str(process.pid)])
    process.kill()
    process.communicate()


def _silent(_: str) -> None:
    pass


def test_samplers_are_opened_before(order: list[str], target: TargetOptions) -> None:
    profile_target(target, ServerOptions(), ProfileRequest(duration_s=0.2, settle=True), _silent)
    opened = order.index("given up")
    assert opened >= (os.cpu_count() or 1)
    assert order == [*["opened"] * opened, "given up"]


def test_probes_are_placed_before(order: list[str], target: TargetOptions) -> None:
    request = FunctionsRequest(duration_s=0.2, pattern="wait_*", backend="bpf", settle=True)
    count_functions(target, request, _silent, _silent)
    before, _, after = " ".join(order).partition("given up")
    assert "opened" in before and "given up" not in after
    # The end of the probes is preceded by one on a file of powerprof (tracing/bpf/mapped_files.py).
    assert after.split() in ([], ["opened"])
