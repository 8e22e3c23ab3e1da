# SPDX-License-Identifier: Apache-2.0
"""`python -m powerprof`."""

import signal
import sys

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Until there is a handler of ours, Ctrl-C ends this as it ends any program: Python's would print a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

if not sys.flags.safe_path and sys.path:
    # With -m the working folder is the first place for modules, for root too: from here on it is none.
    del sys.path[0]

from powerprof.cli import main

if __name__ == "__main__":
    main()
