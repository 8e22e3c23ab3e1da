# SPDX-License-Identifier: Apache-2.0
"""Workloads: folders of data that define measurements. Find, read and check them; make the world dataset."""
