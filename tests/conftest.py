# SPDX-License-Identifier: Apache-2.0
"""What tests share: recordings, the command line in a process of its own, and capabilities."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from powerprof.database import catalogue
from powerprof.database.builds import ServerBuild
from powerprof.system import program_search
from tests.programs.balance import counts_idle_exits, polls_before_it_halts
from tests.programs.busy_host import OtherLoad, skip_on_busy_host
from tests.programs.disks import slows_disks, slows_loop_devices
from tests.programs.forking import Forker, can_fork

REPOSITORY = Path(__file__).resolve().parent.parent
RECORDINGS = REPOSITORY / "tests/fixtures/recordings"

# Properties use the same examples in every run: a failure is a change of the code, and can be repeated.
# No verdict of its clock: a busy host draws slowly.
# Else hypothesis also draws the constants of all modules that were imported before: others in another order of tests.
vars(providers)["is_local_module_file"] = lambda path: False
settings.register_profile("repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("repeatable")


for _number in (signal.SIGHUP, signal.SIGINT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        # `nohup make test`, `make test &` in a script: what is ignored, children ignore too; a handler ends at exec.
        signal.signal(_number, lambda *_: None)

_DESELECTED = pytest.StashKey[list[str]]()
_LOADS = pytest.StashKey[dict[Path, OtherLoad]]()

# Seconds of each test file in the last run on this checkout; a new checkout has those of the file in the repository.
# `make durations` writes the file.
_DURATIONS = "durations/files"
DURATIONS = REPOSITORY / "tests/durations.json"


def _needs_a_server_that_is_not_fetched(item: pytest.Item) -> bool:
    marker = item.get_closest_marker("historical")
    return marker is not None and not all(catalogue.find_server(name).is_fetched for name in marker.args)


# A hypervisor decides whether its guests have a cpuidle driver: what judges that driver needs one.
_OF_HOSTS: tuple[tuple[str, Callable[[], bool], str], ...] = (
    ("cpuidle", counts_idle_exits, "this host has no cpuidle driver"),
    ("loopdevice", slows_loop_devices, "this host has no loop device, or no control group that delays its disk"),
    ("slowdisk", slows_disks, "this host has no control group that delays its disk"),
    ("haltpoll", polls_before_it_halts, "this host has no haltpoll governor, or one CPU"),
)


def _why_not(item: pytest.Item, absent: Mapping[str, str]) -> str | None:
    """Why a test is not asked on this host; None where it is."""
    if _needs_a_server_that_is_not_fetched(item):
        return "its server is not here (powerprof servers fetch)"
    return next((why for name, why in absent.items() if item.get_closest_marker(name)), None)


# What a test needs, as its fixtures show: `root` has tests that need the rights of root, `traced` those that load BPF
# programs and so disturb each other.
_MARKS_OF_FIXTURES = {"root": ("root",), "root_bpf": ("root", "traced")}


def _mark(item: pytest.Item) -> None:
    if item.path.is_relative_to(REPOSITORY / "tests/nightly"):
        item.add_marker("nightly")
    for fixture in getattr(item, "fixturenames", ()):
        for name in _MARKS_OF_FIXTURES.get(fixture, ()):
            item.add_marker(name)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Set the markers, deselect what this host cannot run, and begin with the longest file.

    Fetching a server of the past is a user's decision and needs the network: without it, its tests are not asked.
    """
    for item in items:
        _mark(item)
        is_alone = any(item.get_closest_marker(name) for name in ("traced", "alone"))
        if is_alone and item.path.is_relative_to(REPOSITORY / "tests/unit"):
            raise pytest.UsageError(f"{item.nodeid} traces or runs alone: `make test` collects it in tests/system only")
    absent = {name: why for name, present, why in _OF_HOSTS if not present()}
    reasons = {item: why for item in items if (why := _why_not(item, absent))}
    if reasons:
        config.stash[_DESELECTED] = [f"{item.nodeid}: {why}" for item, why in reasons.items()]
        config.hook.pytest_deselected(items=list(reasons))
        items[:] = [item for item in items if item not in reasons]
    # Else one worker of xdist still has a long file when the others are done.
    seconds = _read_durations(config)
    items.sort(key=lambda item: -seconds.get(str(item.path.relative_to(REPOSITORY)), 0))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note the load of the host from the first fixture of a file on: it can be the one that measures."""
    if item.get_closest_marker("alone") is not None:
        item.config.stash.setdefault(_LOADS, {}).setdefault(item.path, OtherLoad())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Skip a test of the host's idleness if it fails while other programs use much of the CPUs."""
    if item.get_closest_marker("alone") is None:
        return (yield)
    others = OtherLoad()
    try:
        return (yield)
    except (AssertionError, pytest.fail.Exception) as failure:
        skip_on_busy_host(failure, others, item.config.stash[_LOADS][item.path])
        raise


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Leave the collected tests out of garbage collections, which else look at all of them each time."""
    gc.collect()
    gc.freeze()


def _read_durations(config: pytest.Config) -> dict[str, float]:
    cache = getattr(config, "cache", None)
    last = cache.get(_DURATIONS, None) if cache is not None else None
    if last is None and DURATIONS.is_file():
        last = json.loads(DURATIONS.read_text())
    return last or {}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name what was deselected for want of a server or a driver, and keep the durations of the files."""
    for line in config.stash.get(_DESELECTED, []):
        terminalreporter.write_line(f"DESELECTED {line}")
    seconds: dict[str, float] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                file = report.nodeid.partition("::")[0]
                seconds[file] = seconds.get(file, 0) + report.duration
    if getattr(config, "cache", None) is not None and not hasattr(config, "workerinput"):
        config.cache.set(_DURATIONS, {**_read_durations(config), **seconds})


@pytest.fixture(scope="session")
def recordings() -> Path:
    """Recorded machines; $POWERPROF_RECORDINGS moves the folder."""
    return Path(os.environ.get("POWERPROF_RECORDINGS") or RECORDINGS)


@dataclass(frozen=True)
class CliResult:
    """How one command line ended."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Cli:
    """Runs `powerprof …` in a process of its own, with its own XDG directories below `home`.

    `cache` None: below it too; else one that tests share, with what each would make anew (the server's empty data).
    `within` are words that run what follows them.
    """

    home: Path
    cache: Path | None = None
    within: tuple[str, ...] = ()

    def environment(self, env: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment of the command: this one's without what could steer powerprof or its colours. Whether its BPF
        programs are carried or compiled is the run's to say."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if name == "POWERPROF_CARRIED"
            or not name.startswith(("POWERPROF_", "XDG_", "SUDO_", "NO_COLOR", "FORCE_COLOR"))
        }
        private = {f"XDG_{kind}_HOME": str(self.home / kind.lower()) for kind in ("STATE", "CACHE", "CONFIG")}
        if self.cache is not None:
            private["XDG_CACHE_HOME"] = str(self.cache)
        return {**inherited, **private, "HOME": str(self.home), **(env or {})}

    def start(self, args: Sequence[str], env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start it, both outputs piped; the caller ends it."""
        return subprocess.Popen(
            [*self.within, sys.executable, "-m", "powerprof", *args],
            env=self.environment(env),
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )

    def __call__(self, args: Sequence[str], env: Mapping[str, str] | None = None, timeout: float = 120) -> CliResult:
        """Run it to its end. One that hangs gets SIGTERM, so that it stops the server that it started."""
        environment = self.environment(env)
        if not self.within and can_fork(environment):
            return self._fork(args, environment, timeout)
        process = self.start(args, env)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            try:
                out, err = process.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                out, err = process.communicate()
            pytest.fail(f"powerprof {' '.join(args)} did not end in {timeout:g} s\n{out}\n{err}")
        return CliResult(process.returncode, out, err)

    def _fork(self, args: Sequence[str], environment: Mapping[str, str], timeout: float) -> CliResult:
        command = _forker().start(args, environment, REPOSITORY)
        try:
            out, err, code = command.communicate(timeout)
        except subprocess.TimeoutExpired:
            os.kill(command.pid, signal.SIGTERM)
            pytest.fail(f"powerprof {' '.join(args)} did not end in {timeout:g} s")
        return CliResult(code, out, err)


_FORKERS: list[Forker] = []


def _forker() -> Forker:
    """The forker of this process of pytest. A test that ends all descendants of this process ends it, too."""
    if not _FORKERS or not _FORKERS[-1].is_running():
        _FORKERS.append(Forker(REPOSITORY))
    return _FORKERS[-1]


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache of all command lines of these tests: one for all workers of xdist, and for all parts of `make test`."""
    if "TEST_CACHE" in os.environ:
        return Path(os.environ["TEST_CACHE"])
    base = tmp_path_factory.getbasetemp()
    cache = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared-cache"
    cache.mkdir(mode=0o700, exist_ok=True)
    return cache


@pytest.fixture
def powerprof_cli(tmp_path: Path, shared_cache: Path) -> Cli:
    """`powerprof_cli(["doctor"], env={…}, timeout=…)` → CliResult."""
    return Cli(tmp_path / "home", shared_cache)


@pytest.fixture(scope="session")
def mariadbd() -> Path:
    """The server that the host has."""
    found = program_search.which("mariadbd") or program_search.which("mysqld")
    if found is None:
        pytest.skip("no capability: mariadbd (apt install mariadb-server)")
    return found


@pytest.fixture
def historical_build(request: pytest.FixtureRequest) -> ServerBuild:
    """The fetched server that the test's marker `historical` names."""
    marker = request.node.get_closest_marker("historical")
    return catalogue.load_build(marker.args[0])


def each_release(*names: str) -> pytest.MarkDecorator:
    """A test with each of these fetched servers as its `historical_build`."""
    each = [pytest.param(name, marks=pytest.mark.historical(name)) for name in names]
    return pytest.mark.parametrize("historical_build", each, indirect=True)


@pytest.fixture(scope="session")
def sysbench() -> Path:
    """The load generator."""
    found = program_search.which("sysbench")
    if found is None:
        pytest.skip("no capability: sysbench (apt install sysbench)")
    return found


@pytest.fixture(scope="session")
def compilers() -> tuple[str, str]:
    """(C, C++) for programs whose behaviour is known."""
    c, cxx = shutil.which("gcc"), shutil.which("g++")
    if c is None or cxx is None:
        pytest.skip("no capability: C and C++ compilers (apt install gcc g++)")
    return c, cxx


@pytest.fixture(scope="session")
def dtrace_folder(root_bpf: None) -> Path:
    """The folder of Debian sid's `dtrace`, to be put first on PATH; it runs in a root of its own."""
    from tests.programs import dtrace_root

    return dtrace_root.program()


@pytest.fixture(scope="session")
def root_bpf() -> None:
    """BPF programs can be loaded: tried once a session."""
    from powerprof.host import bpf_probes

    tried = bpf_probes.probe_tracing()
    if tried.status != "ok":
        pytest.skip(f"no capability: BPF ({tried.detail}; {tried.remedy or 'no remedy known'})")


@pytest.fixture
def root() -> None:
    """This process is root."""
    if os.geteuid() != 0:
        pytest.skip("no capability: root (sudo make test)")


Tree = Callable[[Mapping[str, str]], Path]


@pytest.fixture
def fake_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """`fake_tree({"sys/…": text, "proc/…": text})` makes a host of files and moves sysfs and procfs to it."""
    host = tmp_path / "host"

    def make(contents: Mapping[str, str]) -> Path:
        for folder in ("sys", "proc"):
            (host / folder).mkdir(parents=True, exist_ok=True)
        for name, text in contents.items():
            path = host / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        monkeypatch.setenv("POWERPROF_SYSFS", str(host / "sys"))
        monkeypatch.setenv("POWERPROF_PROCFS", str(host / "proc"))
        return host

    return make
