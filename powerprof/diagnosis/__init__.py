# SPDX-License-Identifier: Apache-2.0
"""Diagnosis of servers: evidence, rules and findings."""
