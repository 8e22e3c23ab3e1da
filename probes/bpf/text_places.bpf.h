/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The places of statement texts in a server's memory. User space finds them in its program
 * (tracing/statement_places.py).
 *
 * PostgreSQL: `text` is the address of the pointer to the text. `client` is the address of a pointer that is set only
 * in processes that serve a client (0: unknown).
 * MariaDB and MySQL: `client` is the offset of the connection's pointer from the thread pointer. `text` is the offset
 * of the text's address and length in the connection, `mode` the offset of its sql_mode (0: unknown).
 */
struct place {
    u64 text, client, mode;
};

BPF_ARRAY(text_places, struct place, 1);

static __always_inline u64 read_user(u64 address)
{
    u64 value = 0;
    bpf_probe_read_user(&value, sizeof(value), (void *)address);
    return value;
}

#define MODE_ANSI_QUOTES 2   /* the bit in sql_mode, the same in MySQL and MariaDB */

/* Return whether double quotes enclose names in texts of this connection. */
static __always_inline u32 has_ansi_quotes(struct place *place, u64 connection)
{
    return place && place->mode ? read_user(connection + place->mode) >> MODE_ANSI_QUOTES & 1 : 0;
}
