# SPDX-License-Identifier: Apache-2.0
"""Attribution of idle exits, CPU time, sleeps and system calls to threads and functions."""
