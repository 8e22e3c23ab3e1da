# SPDX-License-Identifier: Apache-2.0
"""Whether a BPF program really loads here: loads the smallest one. For `python -m powerprof.tracing.trial [HEADERS]`.

A process of its own, because bcc writes the compiler's complaints straight to descriptor 2, and because a
broken LLVM would take the caller along. Prints `ok`, or one line with the reason and ends with 1.
"""

from __future__ import annotations

import os
import sys

_PROGRAM = "RAW_TRACEPOINT_PROBE(sched_switch) { return 0; }"


def main() -> int:
    """Load, attach and remove a raw tracepoint program that does nothing."""
    try:
        if sys.argv[1:]:
            os.environ["BCC_KERNEL_SOURCE"] = sys.argv[1]
        from bcc import BPF

        BPF(text=_PROGRAM).cleanup()
    except ImportError as error:
        print(f"bcc cannot be imported ({error})")
        return 1
    except Exception as error:  # bcc raises bare Exception, its only message for every failure
        print(str(error).splitlines()[0] if str(error) else type(error).__name__)
        return 1
    print("ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
