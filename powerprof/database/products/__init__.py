# SPDX-License-Identifier: Apache-2.0
"""MariaDB, MySQL and PostgreSQL as private servers: programs, settings, command lines."""
