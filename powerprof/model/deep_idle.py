# SPDX-License-Identifier: Apache-2.0
"""The records of time in which all CPUs idled together: the part `deep` of `powerprof.attribution/1`."""

from __future__ import annotations

import msgspec


class LengthBin(msgspec.Struct, frozen=True, kw_only=True):
    """Stretches of at least `from_us` and less than `below_us`; None: without a limit."""

    from_us: float
    below_us: float | None
    count: int
    time_s: float


class StateShare(msgspec.Struct, frozen=True, kw_only=True):
    """The stretches of at least the target residency of one idle state.

    Attributes:
        time_s, count: None if the target residency is unknown.
        percent: of the time of all stretches.
    """

    name: str
    latency_us: int | None
    target_us: int | None
    disabled: bool
    count: int | None
    time_s: float | None
    percent: float | None


class Breaker(msgspec.Struct, frozen=True, kw_only=True):
    """A cause of idle exits.

    Attributes:
        mechanism: `lost` if the periods after the stretch are unknown; `other` sums the rows beyond the limit.
        count, stretch_s: the stretches that it ended, and their time.
        above_count, below_count: the governor's wrong choices before all its exits, as in `governor`.
    """

    mechanism: str
    name: str | None
    process: str | None
    pid: int | None
    thread: str | None
    count: int
    stretch_s: float
    above_count: int
    below_count: int


class DeepScope(msgspec.Struct, frozen=True, kw_only=True):
    """The stretches in which all CPUs of the host, or of one package, idled together.

    Polling counts as idle, because no program has work. `ended_s`, `open_s`, `running_s` and `unknown_s` sum to
    `window_s`.

    Attributes:
        ended_s: stretches that a breaker ended, or that were cut by lost periods.
        open_s: the stretch that was open at the end of the window.
        running_s: a CPU ran.
        unknown_s: no CPU is known to have run, and the periods of at least one are lost.
        polling_s: the part of the stretches in which at least one CPU polled.
        half_us: stretches of at least this length hold half of the time.
    """

    name: str
    cpus: int
    window_s: float
    ended_s: float
    open_s: float
    running_s: float
    unknown_s: float
    polling_s: float
    count: int
    half_us: float | None
    longest_us: float | None
    lengths: list[LengthBin]
    states: list[StateShare]
    breakers: list[Breaker] = []


class GovernorCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Wrong choices of the idle governor, computed from the periods, and the kernel's own counts.

    Attributes:
        above_count: exits before the target residency.
        below_count: periods that were long enough for the next deeper state.
        kernel_above_count, kernel_below_count: None if unknown.
        is_complete: every period was saved, so both counts cover the same periods.
    """

    above_count: int
    below_count: int
    kernel_above_count: int | None
    kernel_below_count: int | None
    is_complete: bool


class ExpectedScope(msgspec.Struct, frozen=True, kw_only=True):
    """The 95 % intervals of a later window of the same length: lowest and highest value.

    They hold if the load stays the same; they omit events that are rarer than the window. A sleep with slack ends at
    its end or with an earlier timer interrupt, and the kernel keeps or stops the tick: the intervals include both.

    Attributes:
        together_s: all CPUs idle together.
        count: stretches.
        states_s: time in stretches of at least the target residency, by idle state.
    """

    name: str
    together_s: tuple[float, float]
    count: tuple[float, float]
    half_us: tuple[float, float]
    states_s: dict[str, tuple[float, float]]


class DeepWhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """The stretches if threads were absent, or had more timer slack: an upper bound if their work moves elsewhere.

    Attributes:
        slack_ms: by thread.
        unmatched: given threads that ended no idle period.
        removed_count, moved_count: the idle exits that were left out, or that came later.
        scopes: if no tick ends an idle period, and each sleep lasts until the end of its slack.
        expected: by scope; empty if periods are lost.
    """

    without: list[str]
    slack_ms: dict[str, float]
    unmatched: list[str]
    removed_count: int
    moved_count: int
    scopes: list[DeepScope]
    expected: list[ExpectedScope] = []


class DeepIdle(msgspec.Struct, frozen=True, kw_only=True):
    """Deep idle that software would allow in a window; the hardware can use less.

    Attributes:
        table: the CPU or file of the idle states; None for this host's own.
        periods_count: single idle periods; `lost_count` more are unknown.
        governor: None if the target residencies of this host are unknown.
    """

    table: str | None
    periods_count: int
    lost_count: int
    scopes: list[DeepScope]
    governor: GovernorCheck | None = None
    what_if: DeepWhatIf | None = None
