# SPDX-License-Identifier: Apache-2.0
"""What a statement's text says of which statement it is: pure, of text alone."""
