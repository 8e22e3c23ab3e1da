"""Whether a BPF program really loads here: loads the smallest one. For `python -m powerprof.tracing.trial`.

A process of its own, because bcc writes the compiler's complaints straight to descriptor 2, and because a
broken LLVM would take the caller along. Prints `ok`, or one line with the reason and ends with 1.
"""

from __future__ import annotations

import os
import sys

from powerprof.errors import PowerprofError
from powerprof.tracing.headers import kernel_headers

_PROGRAM = "RAW_TRACEPOINT_PROBE(sched_switch) { return 0; }"


def main() -> int:
    """Load, attach and remove a raw tracepoint program that does nothing."""
    try:
        headers = kernel_headers()
        if headers is not None:
            os.environ["BCC_KERNEL_SOURCE"] = str(headers)
        from bcc import BPF

        BPF(text=_PROGRAM).cleanup()
    except PowerprofError as error:
        print(error.message)
        return 1
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
