# SPDX-License-Identifier: Apache-2.0
"""`python -m powerprof`, and `main` of the installed script."""

import _signal  # type: ignore[import-not-found]  # as `signal`, without its imports
import sys

if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    # Until there is a handler of ours, Ctrl-C ends this as it ends any program: Python's would print a traceback.
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

if __name__ == "__main__" and not sys.flags.safe_path and sys.path:
    # With -m the working folder is the first place for modules, for root too: from here on it is none.
    del sys.path[0]

from powerprof.cli import main

if __name__ == "__main__":
    main()
