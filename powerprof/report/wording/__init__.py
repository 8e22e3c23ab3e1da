# SPDX-License-Identifier: Apache-2.0
"""What records hold as names and figures, in sentences."""
