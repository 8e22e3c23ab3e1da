# SPDX-License-Identifier: Apache-2.0
"""`python -m powerprof`."""

import sys

if not sys.flags.safe_path and sys.path:
    # With -m the working folder is the first place for modules, for root too: from here on it is none.
    del sys.path[0]

from powerprof.cli import main

if __name__ == "__main__":
    main()
