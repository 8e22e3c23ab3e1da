# SPDX-License-Identifier: Apache-2.0
"""Write the numbers of system calls by ABI: `python -m tools.syscall_numbers FOLDER`.

FOLDER: usr/lib/linux/uapi of Debian's package linux-libc-dev, the headers of include/uapi for all machines (6.12 or
later; `apt-get download linux-libc-dev`, `dpkg-deb -x`). The numbers never change; newer kernels add calls.
"""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

from powerprof.tracing.syscalls import NUMBERS_FILE

HEADERS = {
    "x86_64": "x86/asm/unistd_64.h",
    "ia32": "x86/asm/unistd_32.h",
    "x32": "x86/asm/unistd_x32.h",
    "aarch64": "arm64/asm/unistd_64.h",
}
_NUMBER = re.compile(r"#define __NR_(\w+) (?:\(__X32_SYSCALL_BIT \+ )?(\d+)\)?")


def read_header(text: str) -> dict[str, int]:
    """Return the number of each system call in a header, without the bit of x32."""
    return {name: int(number) for name, number in _NUMBER.findall(text)}


def main(folder: Path) -> None:
    """Write one row per system call, in the order of the first ABI that has it."""
    numbers = {abi: read_header((folder / header).read_text()) for abi, header in HEADERS.items()}
    names = dict.fromkeys(name for known in numbers.values() for name in sorted(known, key=known.__getitem__))
    with NUMBERS_FILE.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["name", *HEADERS])
        rows.writerows([name, *(known.get(name, "") for known in numbers.values())] for name in names)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
