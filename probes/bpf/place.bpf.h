/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Where a server has the text of what a thread executes: user space finds it in the program (tracing/statement_places.py).
 *
 * PostgreSQL: `text` is where the text's address lies, `client` where there is one in the processes of clients alone (0: not
 * known). Else `client` is the place of the connection's address, from the thread's own pointer on, `text` that of the text's
 * address and length from there on; 0: neither is known. `mode` is that of the connection's sql_mode, 0: not known.
 */
struct place {
    u64 text, client, mode;
};

BPF_ARRAY(place_of, struct place, 1);

static __always_inline u64 read_user(u64 address)
{
    u64 value = 0;
    bpf_probe_read_user(&value, sizeof(value), (void *)address);
    return value;
}

#define MODE_ANSI_QUOTES 2   /* the bit in sql_mode, the same in MySQL and MariaDB */

/* Whether the server reads double quotes in texts of this connection as those of names. */
static __always_inline u32 ansi_of(struct place *place, u64 connection)
{
    return place && place->mode ? read_user(connection + place->mode) >> MODE_ANSI_QUOTES & 1 : 0;
}
