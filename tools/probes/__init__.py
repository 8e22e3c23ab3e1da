# SPDX-License-Identifier: Apache-2.0
"""Makes the compiled programs that powerprof carries (`make probes`), and looks whether bcc still makes the same."""
