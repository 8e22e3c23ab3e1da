# SPDX-License-Identifier: Apache-2.0
"""Files for other programs: CSV, Markdown, flame graphs, profiles, timelines, Parquet."""
