# SPDX-License-Identifier: Apache-2.0
"""A signal is raised once, can be delayed, and is never lost."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from tests.conftest import REPOSITORY


def run(body: str) -> str:
    """Return the output of a separate process that installs the handlers and runs `body`."""
    program = (
        "import ctypes, os, signal, sys, time\nfrom powerprof.system import signals\n"
        "from powerprof.system.errors import Interrupted\nsignals.install()\n" + textwrap.dedent(body)
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, encoding="utf-8", timeout=30, check=True
    )
    assert done.stderr == ""
    return done.stdout


def test_first_signal_raises_and_second_is_delayed() -> None:
    assert (
        run("""
        try:
            signal.raise_signal(signal.SIGINT)
        except Interrupted:
            signal.raise_signal(signal.SIGTERM)
            print("cleaned up")
        try:
            signals.release()
        except Interrupted:
            print("then the second")
    """)
        == "cleaned up\nthen the second\n"
    )


def test_except_exception_does_not_catch_a_signal() -> None:
    assert (
        run("""
        try:
            try:
                signal.raise_signal(signal.SIGTERM)
            except Exception:
                print("swallowed")
        except Interrupted:
            print("raised")
    """)
        == "raised\n"
    )


def test_held_signal_is_raised_at_the_release() -> None:
    assert (
        run("""
        signals.hold()
        signal.raise_signal(signal.SIGTERM)
        print("saved")
        try:
            signals.release()
        except Interrupted:
            print("raised")
        signals.hold()
        signals.release()
        print("and no more")
    """)
        == "saved\nraised\nand no more\n"
    )


def test_signal_during_an_import_is_raised_after_it(tmp_path: Path) -> None:
    (tmp_path / "half.py").write_text("import signal\nsignal.raise_signal(signal.SIGTERM)\nprint('imported')\n")
    assert (
        run(f"""
        sys.path.insert(0, {str(tmp_path)!r})
        try:
            import half
            time.sleep(10)
        except Interrupted:
            print("raised")
        signals.install()
        del sys.modules["half"]
        import half
        signals.hold()
        time.sleep(0.1)
        print("saved")
        try:
            signals.release()
        except Interrupted:
            print("raised")
    """)
        == "imported\nraised\nimported\nsaved\nraised\n"
    )


def test_signal_dropped_by_a_c_callback_is_raised_again() -> None:
    """ctypes prints exceptions of its callbacks and continues."""
    assert (
        run("""
        def callback(left, right):
            signal.raise_signal(signal.SIGINT)
            return 0
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        numbers = (ctypes.c_int * 2)(2, 1)
        try:
            ctypes.CDLL(None).qsort(numbers, 2, 4, kind(callback))
            time.sleep(20)
            print("lost")
        except Interrupted:
            print("raised")
    """)
        == "raised\n"
    )


def test_hold_without_handlers_has_no_effect() -> None:
    """A library must not change the signals of its caller."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import signal\nfrom powerprof.system import signals\n"
            "signals.hold(); signals.release()\nprint(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)",
        ],
        cwd=REPOSITORY,
        capture_output=True,
        encoding="utf-8",
        timeout=30,
        check=True,
    )
    assert done.stdout == "True\n"


def test_hang_up_has_its_own_error_and_is_ignored_under_nohup() -> None:
    assert (
        run("""
        try:
            signal.raise_signal(signal.SIGHUP)
        except Interrupted as error:
            signal.raise_signal(signal.SIGTERM)
            print(error.message, error.exit_code, signals.interruption("saved").exit_code)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signals.install()
        signal.raise_signal(signal.SIGHUP)
        print("still here")
        try:
            signal.raise_signal(signal.SIGTERM)
        except Interrupted as error:
            print(error.message, error.exit_code)
    """)
        == "hung up 129 129\nstill here\ninterrupted 130\n"
    )


_CONNECTION = """
    from powerprof.database.base import Limits
    from powerprof.database.wire import BoundedConnection

    class Socket:
        def close(self):
            signal.raise_signal(signal.SIGTERM)

    connection = BoundedConnection(Limits(), 1.0, defer_connect=True)
    connection._sock = Socket()
    try:
        %s
        for _ in range(100):
            time.sleep(0.01)
        print("swallowed")
    except Interrupted:
        print("raised")
"""


def test_signal_during_the_close_of_a_connection_is_raised() -> None:
    assert run(_CONNECTION % "connection._force_close()") == "raised\n"


def test_signal_in_the_destructor_of_a_connection_is_raised() -> None:
    assert run(_CONNECTION % "del connection") == "raised\n"


def test_dropped_signal_is_raised_again_on_a_slow_host_with_its_own_error() -> None:
    """The second signal arrives while Python still reports the dropped first one."""
    assert (
        run("""
        arm = signal.setitimer
        def slowly(which, *times):
            arm(which, *times)
            until = time.monotonic() + 0.05
            while times[0] and time.monotonic() < until:
                pass
        signal.setitimer = slowly
        class Dropping:
            def __del__(self):
                signal.raise_signal(signal.SIGHUP)
        one = Dropping()
        try:
            del one
            time.sleep(20)
            print("lost")
        except Interrupted as error:
            print(type(error).__name__)
        signal.raise_signal(signal.SIGTERM)
        try:
            signals.release()
        except Interrupted:
            print("and the next")
    """)
        == "HungUp\nand the next\n"
    )


def test_wakeup_descriptor_belongs_to_the_main_thread_of_one_process() -> None:
    """A child has a separate pipe, or its signals would wake its parent. Waits work without a descriptor too."""
    assert (
        run("""
        import resource, threading
        from powerprof.measure.window import wait_and_read
        heard = signals.wakeup_descriptor()
        other = threading.Thread(target=lambda: print("other thread", signals.wakeup_descriptor()))
        other.start()
        other.join()
        sys.stdout.flush()
        if (child := os.fork()) == 0:
            print("child", signal.set_wakeup_fd(-1), signals.wakeup_descriptor() not in (None, heard), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        print("again", signals.wakeup_descriptor() == heard, signal.set_wakeup_fd(-1) >= 0)
        signals._pipe.cache_clear()
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
        wait_and_read((), 0.01)
        print("no descriptor", signals.wakeup_descriptor())
    """)
        == "other thread None\nchild -1 True\nagain True True\nno descriptor None\n"
    )


def test_a_command_ends_by_its_first_signal() -> None:
    """A terminal that closes sends SIGHUP, and its shell SIGTERM after that."""
    assert (
        run("""
        try:
            signal.raise_signal(signal.SIGHUP)
        except Interrupted:
            signal.raise_signal(signal.SIGTERM)
            print(type(signals.interruption()).__name__, signals.has_arrived())
    """)
        == "HungUp True\n"
    )
    assert (
        run("""
        signals.hold()
        print(signals.has_arrived())
        signal.raise_signal(signal.SIGHUP)
        print(type(signals.interruption()).__name__, signals.interruption().exit_code, signals.has_arrived())
    """)
        == "False\nHungUp 129 True\n"
    )
