# SPDX-License-Identifier: Apache-2.0
"""Entry point of the `powerprof` script and of `python -m powerprof`."""

import _signal  # type: ignore[import-not-found]  # `signal` without its imports: 5 ms less without a handler
import sys

# Python's handler of Ctrl-C prints a traceback. Until `main` installs another one, Ctrl-C ends the process silently.
if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

# `python -m` searches the working folder for modules first, for root too. The `-P` option of Python prevents that.
if __name__ == "__main__" and not sys.flags.safe_path and sys.path:
    del sys.path[0]

from powerprof.cli import main

if __name__ == "__main__":
    main()
