# SPDX-License-Identifier: Apache-2.0
"""How long threads sleep and wait for a CPU, and who wakes them, by BPF."""
