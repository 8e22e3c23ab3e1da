# SPDX-License-Identifier: Apache-2.0
"""A cure on a program that counts its own wake-ups, and on a server: what it saves, and that it is as before."""

from __future__ import annotations

import mmap
import re
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec
import psutil
import pytest

from powerprof.cure import windows
from powerprof.cure.prediction import waits_by_wall_clock
from powerprof.cure.records import Cure
from powerprof.database import sql
from powerprof.database.private_server import PrivateServer
from powerprof.database.server_options import ServerOptions
from powerprof.energy.request import NO_METER
from powerprof.energy.windows import WindowEnergy
from powerprof.model.runs import decode_record
from powerprof.system.targets import Target
from tests.conftest import Cli
from tests.programs.option_files import write_options
from tests.programs.truth import compiled
from tests.programs.waiting import wait_until

pytestmark = pytest.mark.usefixtures("root_bpf")
DEFAULT, CURED, SHORT = "50000", "50000000", "60000"


class Truth:
    """A program with its thread and its own count of wake-ups."""

    def __init__(self, program: Path, folder: Path, poll_ms: int) -> None:
        self._file = folder / "count"
        self.process = subprocess.Popen(
            [program, self._file, str(poll_ms)], stdout=subprocess.PIPE, text=True, bufsize=1
        )
        assert self.process.stdout is not None
        self.tid = int(self.process.stdout.readline().split()[1])
        with self._file.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 8, prot=mmap.PROT_READ)

    @property
    def pid(self) -> int:
        return self.process.pid

    def count(self) -> int:
        """How often it has woken."""
        (value,) = struct.unpack("Q", self._map[:8])
        return int(value)

    def slack(self) -> str:
        return Path(f"/proc/{self.tid}/timerslack_ns").read_text().strip()

    def set_slack(self, value: str) -> None:
        Path(f"/proc/{self.tid}/timerslack_ns").write_text(value)

    def end(self) -> None:
        assert self.process.stdout is not None
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def truth(tmp_path: Path, compilers: Sequence[str]) -> Iterator[Truth]:
    running = Truth(compiled(compilers[0], "slack_truth.c", tmp_path), tmp_path, 1)
    yield running
    running.end()


def cure(truth: Truth, *more: str, window_s: float = 0.5, pairs: int = 3) -> list[str]:
    return ["cure", "--pid", str(truth.pid), "--thread", "truth-poller", "--duration", str(window_s),
            "--pairs", str(pairs), "--yes", "--meter", "none", *more]  # fmt: skip


@pytest.mark.parametrize("slack", [DEFAULT, CURED])
def test_counters_and_trace_agree_with_the_program(truth: Truth, slack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own: list[int] = []

    class Watched(windows.SwitchCounter):
        def begin(self) -> None:
            super().begin()
            own.append(truth.count())

        def end(self) -> None:
            own.append(truth.count())
            super().end()

    monkeypatch.setattr(windows, "SwitchCounter", Watched)
    truth.set_slack(slack)
    target = Target((truth.pid,), "truth")
    with WindowEnergy(NO_METER) as energy, windows.CureWindows(target, truth.tid, energy) as measuring:
        assert measuring.untraced is None
        block = measuring.measure(2.0, 0, "before").block
    count = own[1] - own[0]
    assert count > 25
    assert block.thread_wakings_count == pytest.approx(count, rel=0.02, abs=3)
    assert block.target_wakings_count == block.thread_wakings_count
    assert block.traced_wakings_count is not None
    assert block.traced_s is not None
    assert block.traced_wakings_count / block.traced_s == pytest.approx(count / block.counted_s, rel=0.02, abs=2)
    assert block.thread_exits_count is not None
    assert block.thread_exits_count <= block.traced_wakings_count


def check_prediction(record: Cure) -> None:
    assert record.predicted is not None
    assert record.predicted.most_hz is not None
    assert record.metrics[0].b.mean is not None
    assert 0.8 * record.predicted.then_hz <= record.metrics[0].b.mean <= 1.2 * record.predicted.most_hz


def test_cure_measures_savings_as_predicted_and_restores_the_slack(
    truth: Truth, powerprof_cli: Cli, tmp_path: Path
) -> None:
    # Of six pairs one that a busy host spoils is not all that decides.
    words = [*cure(truth, "--slack", "50ms", pairs=6), "--json", str(tmp_path / "cure.json")]
    result = powerprof_cli(words, timeout=120)
    assert result.code == 0, result.err
    assert "from 50us to 50ms, alternately" in result.err
    record = decode_record(tmp_path / "cure.json", Cure)
    first = record.metrics[0]
    assert (first.name, first.verdict) == ("thread_wakings_hz", "b_lower")
    assert first.a.mean is not None
    assert first.b.mean is not None
    assert first.b.mean < 0.6 * first.a.mean
    check_prediction(record)
    assert (record.reverted, record.read_back, truth.slack()) == (True, DEFAULT, DEFAULT)
    assert sorted(record.order) == ["before"] * 6 + ["cured"] * 6
    assert result.out.startswith("truth-poller wakes up ")
    assert "TimerSlackNSec=50ms" in " ".join(result.out.split())
    assert "restored and verified: 50us" in " ".join(result.out.split())
    assert "truth-poller wakes up" in powerprof_cli(["runs"]).out
    again = powerprof_cli(["report", "cure-0001"])
    assert again.code == 0
    assert again.out.splitlines()[0] == result.out.splitlines()[0]


@pytest.mark.nightly
@pytest.mark.parametrize("slack_ms", [50, 200])
def test_prediction_agrees_with_measurement(truth: Truth, powerprof_cli: Cli, tmp_path: Path, slack_ms: int) -> None:
    words = [*cure(truth, "--slack", f"{slack_ms}ms", window_s=2), "--no-save", "--json", str(tmp_path / "cure.json")]
    result = powerprof_cli(words, timeout=120)
    assert result.code == 0, result.err
    check_prediction(decode_record(tmp_path / "cure.json", Cure))


def test_detect_the_clock_of_a_wait(compilers: Sequence[str], tmp_path: Path, truth: Truth) -> None:
    program = compiled(compilers[0], "wall_waiter.c", tmp_path)
    with subprocess.Popen([program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        tid = int(process.stdout.readline().split()[1])
        seen = waits_by_wall_clock(process.pid, tid)
        process.kill()
    assert seen is True
    assert waits_by_wall_clock(truth.pid, truth.tid) is None  # it polls


def test_add_pairs_until_the_precision_is_reached(truth: Truth, powerprof_cli: Cli, tmp_path: Path) -> None:
    words = [*cure(truth, "--slack", "50ms"), "--precision", "90%", "--json", str(tmp_path / "cure.json")]
    result = powerprof_cli(words, timeout=180)
    assert result.code == 0, result.err
    assert "3 to 12 windows without the change and as many with it, of 0.5 s, at most 24 s in all" in " ".join(
        result.err.split()
    )
    record = decode_record(tmp_path / "cure.json", Cure)
    # How many pairs 90 % take depends on the host.
    pairs = record.order.count("before")
    assert record.order.count("cured") == pairs
    assert 3 <= pairs <= 11
    assert [note for note in record.notes if f"reached after {pairs} pairs" in str(note)]


@pytest.mark.parametrize(("slack", "reason"), [("50us", "same_value"), ("51us", "no_saving")])
def test_a_change_without_a_gain_is_not_tried(truth: Truth, powerprof_cli: Cli, slack: str, reason: str) -> None:
    """The program polls every 1 ms, so that 1 µs more saves one in 1,000 wake-ups."""
    result = powerprof_cli([*cure(truth, "--slack", slack), "--no-save", "--json", "-"], timeout=60)
    assert result.code == 0, result.err
    record = msgspec.json.decode(result.out, type=Cure)
    assert (record.verdict.untried, record.blocks_count, record.read_back) == (reason, 0, DEFAULT)
    assert record.verdict.text.startswith("Nothing to gain: ")
    assert "This changes" not in result.err
    assert truth.slack() == DEFAULT


def traces(pid: int) -> bool:
    """Return whether the process has loaded a BPF program."""
    links = []
    for place in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            links.append(place.readlink().name)
    return "anon_inode:bpf-prog" in links


_OWN_JOURNAL = (
    'for folder in /run/powerprof-changed /var/lib/powerprof-changed; do mkdir -m 700 -p "$folder" "$0$folder" && '
    'mount --bind "$0$folder" "$folder" || exit; done; exec "$@"'
)


def with_own_journal(cli: Cli, folder: Path) -> Cli:
    """Return a command line with its own journals, which no other command of root restores."""
    place = folder / "changed"
    place.mkdir(0o700)
    apart = ("unshare", "--mount", "--propagation", "private", "sh", "-c", _OWN_JOURNAL, str(place))
    return replace(cli, within=apart)


@pytest.fixture
def own_journal(powerprof_cli: Cli, tmp_path: Path) -> Cli:
    """See `with_own_journal`."""
    return with_own_journal(powerprof_cli, tmp_path)


def start_shortening(cli: Cli, truth: Truth, window_s: float = 30) -> subprocess.Popen[str]:
    """Start a cure from CURED to SHORT, and wait for its window: without a prediction, which covers longer slack only.

    The change is tried once before, while nothing is traced.
    """
    truth.set_slack(CURED)
    process = cli.start(cure(truth, "--slack", "60us", window_s=window_s))
    wait_until(lambda: truth.slack() == SHORT and traces(process.pid), "it does not trace what it changed")
    return process


@pytest.fixture
def running(truth: Truth, own_journal: Cli) -> Iterator[subprocess.Popen[str]]:
    """Yield a cure in a window with the changed slack."""
    process = start_shortening(own_journal, truth)
    yield process
    process.kill()
    process.communicate()


def kill_both(process: subprocess.Popen[str], is_changed: Callable[[], bool]) -> None:
    """Kill powerprof and its keeper while the setting is changed: not while its first change is being restored."""

    def is_done() -> bool:
        if not is_changed():
            return False
        process.send_signal(signal.SIGSTOP)
        with suppress(ValueError, psutil.NoSuchProcess):  # It has no keeper now.
            keeper = keeper_of(process)
            keeper.suspend()
            if is_changed():
                keeper.kill()
                process.kill()
                return True
            keeper.resume()
        process.send_signal(signal.SIGCONT)
        return False

    wait_until(is_done, "the setting is not changed")
    process.communicate(timeout=60)


def keeper_of(process: subprocess.Popen[str]) -> psutil.Process:
    (found,) = [one for one in psutil.Process(process.pid).children() if "powerprof.reversible.keeper" in one.cmdline()]
    return found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_keeper_restores_after_the_end_of_powerprof(truth: Truth, running: subprocess.Popen[str], number: int) -> None:
    running.send_signal(number)
    running.wait(60)
    wait_until(lambda: truth.slack() == CURED, "the slack is not restored")
    assert running.returncode in (-signal.SIGKILL, 130)


def test_powerprof_restores_after_the_end_of_the_keeper(truth: Truth, running: subprocess.Popen[str]) -> None:
    keeper_of(running).kill()
    running.send_signal(signal.SIGTERM)
    running.wait(60)
    assert truth.slack() == CURED


def test_next_start_restores_after_the_end_of_both(
    truth: Truth, running: subprocess.Popen[str], own_journal: Cli
) -> None:
    keeper = keeper_of(running)
    running.send_signal(signal.SIGSTOP)
    keeper.kill()
    running.kill()
    running.wait(60)
    assert truth.slack() == SHORT
    result = own_journal(["runs"])
    assert result.code == 0
    assert f"the timer slack of thread {truth.tid} is {CURED} again" in result.err
    assert truth.slack() == CURED
    assert str(truth.tid) not in own_journal(["runs"]).err


def test_report_a_target_that_ends(truth: Truth, running: subprocess.Popen[str]) -> None:
    truth.end()
    running.send_signal(signal.SIGTERM)
    _, err = running.communicate(timeout=60)
    assert "Traceback" not in err
    assert not psutil.pid_exists(truth.pid)


def options_of(server: PrivateServer, folder: Path) -> Path:
    """Write an option file with the account of a server."""
    place = folder / f"{server.options.name}.cnf"
    write_options(place, server.login)
    return place


def test_cure_of_a_variable(powerprof_cli: Cli, tmp_path: Path, pooled_server: Callable[..., PrivateServer]) -> None:
    server = pooled_server()
    words = ["cure", "--pid", str(server.pid), "--defaults-file", str(options_of(server, tmp_path)),
             "--duration", "0.5", "--pairs", "3", "--yes", "--meter", "none"]  # fmt: skip
    saved = tmp_path / "cure.json"
    result = powerprof_cli([*words, "--set", "innodb_print_all_deadlocks=ON", "--json", str(saved)], timeout=120)
    assert result.code == 0, result.err
    said = " ".join(result.out.split())
    assert "restored and verified: 0" in said
    assert "Replication lag: not measured: the server is not a replica." in said
    assert {block.replica_lag_s for block in decode_record(saved, Cure).blocks} == {None}
    assert server.login.password not in result.out + result.err
    for wrong, code in (("no_such_variable=1", 2), ("version=1", 2), ("max_connections=many", 2)):
        refused = powerprof_cli([*words, "--set", wrong, "--no-save"], timeout=60)
        assert refused.code == code, refused.err
        assert "Traceback" not in refused.err
        assert "This changes" not in refused.err
    with server.connect() as connection:
        assert sql.fetch_scalar(connection, "SELECT @@GLOBAL.innodb_print_all_deadlocks") == 0


def test_cure_of_the_first_remedy_of_a_finding(powerprof_cli: Cli, tmp_path: Path) -> None:
    with PrivateServer(ServerOptions(settings={"event-scheduler": "ON"})) as server:
        options = options_of(server, tmp_path)
        began_s = time.monotonic()
        with server.connect() as connection:
            sql.execute(
                connection,
                "CREATE DATABASE shop",
                "CREATE TABLE shop.t (n BIGINT)",
                "CREATE EVENT shop.`beat``; --` ON SCHEDULE EVERY 1 SECOND DO INSERT INTO shop.t VALUES (1)",
            )
        words = ["cure", "--pid", str(server.pid), "--defaults-file", str(options), "--duration", "1.5", "--pairs", "3",
                 "--yes", "--meter", "none", "--finding", "event_scheduler"]  # fmt: skip
        result = powerprof_cli([*words, "--json", str(tmp_path / "cure.json")], timeout=180)
        assert result.code == 0, result.err
        record = decode_record(tmp_path / "cure.json", Cure)
        assert (record.remedy.kind, record.remedy.name) == ("variable", "event_scheduler")
        assert (record.remedy.from_value, record.remedy.to_value) == ("ON", "OFF")
        assert (record.reverted, record.read_back) == (True, "ON")
        # Which finding comes first depends on the host.
        assert re.search(r"Finding \d+ \(event_scheduler\): The event scheduler starts shop.beat", result.err)
        with server.connect() as connection:
            ran = sql.fetch_scalar(connection, "SELECT COUNT(*) FROM shop.t")
            cured_s = sum(
                block.counted_s for block, arm in zip(record.blocks, record.order, strict=True) if arm == "cured"
            )
            assert cured_s > 4
            assert ran < time.monotonic() - began_s - cured_s + 2, "no event runs while the scheduler is off"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--finding", "nosuch"], "no finding 'nosuch' can be tried"),
        (["--thread", "nobody"], "has no thread 'nobody'"),
        (["--thread", "1"], "has no thread '1'"),
        (["--set", "a=1"], "is not a MariaDB, MySQL or PostgreSQL server"),
        (["--socket", "/nowhere", "--thread", "truth-poller"], "nowhere"),
    ],
)
def test_refuse_unsuitable_remedies(truth: Truth, powerprof_cli: Cli, words: list[str], said: str) -> None:
    slack = ["--slack", "1ms"] if "--thread" in words else []
    result = powerprof_cli(["cure", "--pid", str(truth.pid), *words, *slack, "--yes", "--no-save"])
    assert result.code in (1, 2)
    assert said in result.err
    assert "changes" not in result.err
    assert truth.slack() == DEFAULT


def test_require_consent_without_a_terminal(truth: Truth, powerprof_cli: Cli) -> None:
    result = powerprof_cli([word for word in cure(truth, "--slack", "50ms") if word != "--yes"])
    assert (result.code, result.out) == (2, "")
    assert result.err.endswith("error: confirmation needs a terminal\nhint: add --yes\n")


def test_list_candidates_without_a_choice(truth: Truth, powerprof_cli: Cli) -> None:
    result = powerprof_cli(["cure", "--pid", str(truth.pid)], timeout=60)
    assert result.code == 0, result.err
    assert f"powerprof cure --pid {truth.pid} --thread {truth.tid} --slack 50ms" in result.out
