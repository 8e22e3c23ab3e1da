# SPDX-License-Identifier: Apache-2.0
"""Live screens: `watch` and `queries --watch`. Pure."""
