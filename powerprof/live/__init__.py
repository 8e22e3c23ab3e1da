# SPDX-License-Identifier: Apache-2.0
"""What runs all day: a loop of traced intervals, counters made of them, and who may read these."""
