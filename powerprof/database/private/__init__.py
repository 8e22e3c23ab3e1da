# SPDX-License-Identifier: Apache-2.0
"""Private servers, alone and in topologies."""
