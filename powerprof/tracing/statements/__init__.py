# SPDX-License-Identifier: Apache-2.0
"""What each statement of a server uses."""
