# SPDX-License-Identifier: Apache-2.0
"""What root gives up, and that what is left is enough."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from powerprof import privileges, programs
from tests.conftest import REPOSITORY, Cli

_SETTLED = """
import os, sys
from powerprof import privileges
from powerprof.caller import account_of, acting_as
from powerprof.errors import PowerprofError
privileges.keep(privileges.TRACING)
with acting_as(account_of(65534)):
    pass
tries = {
    "chown": lambda: os.chown(sys.argv[1], 65534, 65534),
    "write": lambda: open(sys.argv[1], "w").close(),
    "mknod": lambda: os.mknod(sys.argv[1] + ".device", 0o20600, os.makedev(1, 3)),
    "kill": lambda: os.kill(int(sys.argv[2]), 0),
}
for name, attempt in tries.items():
    try:
        attempt()
        print(name)
    except OSError:
        pass
print(open(sys.argv[1]).read())
"""


def test_what_is_given_up_is_gone_and_reading_is_left(root: None, tmp_path: Path) -> None:
    """A file and a process of another account: read, and not changed, even by a child."""
    file = tmp_path / "file"
    file.write_text("theirs")
    file.chmod(0o600)
    os.chown(file, 65534, 65534)
    other = programs.start(["sleep", "60"], user=(65534, 65534))
    try:
        words = [sys.executable, "-c", _SETTLED, str(file), str(other.pid)]
        said = subprocess.run(words, capture_output=True, encoding="utf-8", cwd=REPOSITORY, check=True)
    finally:
        programs.stop(other)
    assert said.stdout.split() == ["theirs"]


def test_attribute_gives_up_what_it_no_longer_needs(root_bpf: None, root: None, powerprof_cli: Cli) -> None:
    """While it measures it holds what is documented and nothing else, and the result is whole."""
    sleeper = programs.start(["sh", "-c", "while sleep 0.05; do :; done"], user=(65534, 65534))
    process = powerprof_cli.start(["attribute", "--pid", str(sleeper.pid), "--duration", "3", "--json", "-"])
    allowed = sum(1 << number for number in privileges.TRACING.values())
    seen = set()
    try:
        deadline = time.monotonic() + 90
        while process.poll() is None and time.monotonic() < deadline:
            try:
                status = Path(f"/proc/{process.pid}/status").read_text()
            except OSError:
                break
            words = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
            if "CapEff" in words:
                seen.add((int(words["CapPrm"], 16), int(words["CapBnd"], 16), words["NoNewPrivs"]))
            time.sleep(0.2)
        out, err = process.communicate(timeout=90)
    finally:
        programs.stop(sleeper)
        process.kill()
    assert process.returncode == 0, err
    assert any(held & ~allowed == 0 and bounded & ~allowed == 0 and new == "1" for held, bounded, new in seen), seen
    record = json.loads(out)
    # Read of another account's process, after the rest was given up. (A busy host has no idle exits to count.)
    assert record["window_s"] >= 3 and record["conservation"]["lost_count"] == 0
    assert record["target"]["pid"] == sleeper.pid and record["target"]["executable"].endswith("sh")
