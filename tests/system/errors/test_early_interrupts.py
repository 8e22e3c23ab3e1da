# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C while the program's modules are still being imported is no traceback, whichever way it was started."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import tomllib

import pytest

from tests.conftest import REPOSITORY, Cli

# Says when the first of powerprof's modules behind the entry point is about to be imported.
_TOLD = """import sys
def told(event, words):
    if event == "import" and words[0] == "powerprof.cli":
        print("up", flush=True)
sys.addaudithook(told)
"""
_ENTRY = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["scripts"]["powerprof"]
_WAYS = {
    # As installers write it.
    "script": "from {} import {} as main\nsys.exit(main())".format(*_ENTRY.split(":")),
    "module": "import runpy\nrunpy.run_module('powerprof', run_name='__main__', alter_sys=True)",
}


@pytest.mark.parametrize("way", _WAYS)
def test_ctrl_c_during_the_first_imports_is_no_traceback(way: str, powerprof_cli: Cli) -> None:
    codes = []
    for wait_ms in range(0, 81, 4):
        process = subprocess.Popen(
            [sys.executable, "-c", _TOLD + _WAYS[way], "--help"],
            env=powerprof_cli.environment(),
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        time.sleep(wait_ms / 1000)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert "Traceback" not in err, f"{wait_ms} ms: {err}"
        codes.append(process.returncode)
    assert codes[0] == -signal.SIGINT
    assert set(codes) <= {-signal.SIGINT, 130, 0}
