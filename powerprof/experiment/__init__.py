# SPDX-License-Identifier: Apache-2.0
"""Experiments: plan, measure and judge idle runs, single conditions, comparisons, sweeps and studies."""
