# SPDX-License-Identifier: Apache-2.0
"""What powerprof itself costs, beside other tools. Run by `make bench`; options: `python -m tools.bench --help`."""
