# SPDX-License-Identifier: Apache-2.0
"""What differs between MariaDB, MySQL and PostgreSQL: builds, settings, command lines."""
