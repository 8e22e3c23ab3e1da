# SPDX-License-Identifier: Apache-2.0
"""What a window of each tracer is between its collection and its analysis: plain values that can be saved."""
