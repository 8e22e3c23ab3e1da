/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The places of statement texts in a server's memory. User space finds them in its program
 * (tracing/statement_places.py).
 *
 * PostgreSQL: `text` is the address of the pointer to the text. `client` is the address of a pointer that is set only
 * in processes that serve a client (0: unknown). `entry` is the address of MyBEEntry, the pointer to the row of
 * pg_stat_activity (0: unknown); the offset `activity` in the row has the address of the process's last text, which is
 * cut to `limit` bytes with its zero byte. `running` is the state of a process that executes a message.
 * MariaDB and MySQL: `client` is the offset of the connection's pointer from the thread pointer. `text` is the offset
 * of the text's address and length in the connection, `mode` the offset of its sql_mode (0: unknown).
 */
struct place {
    u64 text, client, mode;
    u64 entry, activity, limit, running;
};

BPF_ARRAY(text_places, struct place, 1);

static __always_inline u64 read_user(u64 address)
{
    u64 value = 0;
    bpf_probe_read_user(&value, sizeof(value), (void *)address);
    return value;
}

#define PROCESS_OF_ROW 4
#define STATE_BEFORE_TEXT 16 /* from the state of a row of pg_stat_activity to its text: the title is between them */

/* PostgreSQL: return the address of the process's last text, which is valid until its next message; 0: unknown. Set
 * whether its message is executed. */
static __always_inline u64 find_last_activity(struct place *place, int *is_running)
{
    u64 entry = place->entry ? read_user(place->entry) : 0, address;

    /* A process that starts has the row of an ended one, which has no process. */
    if (!entry || !(u32)read_user(entry + PROCESS_OF_ROW))
        return 0;
    *is_running = (u32)read_user(entry + place->activity - STATE_BEFORE_TEXT) == (u32)place->running;
    address = read_user(entry + place->activity);
    return read_user(address) & 255 ? address : 0;
}

#define MODE_ANSI_QUOTES 2   /* the bit in sql_mode, the same in MySQL and MariaDB */

/* Return whether double quotes enclose names in texts of this connection. */
static __always_inline u32 has_ansi_quotes(struct place *place, u64 connection)
{
    return place && place->mode ? read_user(connection + place->mode) >> MODE_ANSI_QUOTES & 1 : 0;
}
