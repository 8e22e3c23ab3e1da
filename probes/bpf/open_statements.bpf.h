/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Identify the statements that began before the window.
 *
 * A thread that executes one has its text in its memory. The text is read at the first event of the thread: when it
 * leaves its CPU, or sends a packet. These are the first places where the current memory is that of the thread. A
 * thread without a text there is between statements, and its later ones are seen at their beginning. So the identity is
 * that of the same text in any other window. The beginning is unknown, so these statements have no latency and their
 * sums have separate entries in `totals` (BEGAN_BEFORE).
 */

#if IS_POSTGRESQL
/* Return the address of the text of the open statement (0: none). `sends`: the process sends a packet. */
static __always_inline u64 find_open_text(struct thread *thread, struct place *place, u64 task, int sends)
{
    u64 address = place->text ? read_user(place->text) : 0;
    int is_running;

    thread->unnamed_number = 0;
    if (place->client && !read_user(place->client)) {
        thread->command = COM_PART;
        thread->is_helper = address != 0;
    }
    /* The packet follows the end of the message, and nothing began before it in the window. */
    if (!address && sends) {
        address = find_last_activity(place, &is_running);
        thread->unnamed_number = place->limit;
        thread->is_done = 1;
    }
    return address;
}

static __always_inline void name_open(struct thread *thread, u32 tid, u64 id)
{
    /* A text that fills its row of pg_stat_activity may be longer. */
    if (id < 256 || (thread->unnamed_number && thread->hashed_bytes + 1 >= thread->unnamed_number))
        return;
    keep_text(thread, id, COM_QUERY, tid, 0);
    thread->id = id;
}
#else
static __always_inline u64 find_open_text(struct thread *thread, struct place *place, u64 task, int sends)
{
    u64 text[2] = {}, connection;

    if (!place->text)
        return 0;
    connection = read_user(read_u64(task + OFFSET_task_struct_thread + OFFSET_thread_struct_pointer) + place->client);
    if (!connection)
        return 0;
    bpf_probe_read_user(text, sizeof(text), (void *)(connection + place->text));
    if (!text[0] || !(u32)text[1])
        return 0;
    /* A procedure has the texts of its statements. Its own text is read at its last packet. */
    thread->unnamed_connection = connection;
    thread->unnamed_number = LAST_PREPARED;
    thread->progress.has_ansi_quotes = has_ansi_quotes(place, connection);
    thread->progress.length = text[1];
    return text[0];
}

static __always_inline void name_open(struct thread *thread, u32 tid, u64 id)
{
    name_statement(thread, tid, id);
}
#endif

/* Open the statement that the current thread executes if it began before the window. Return whether its text is to be
 * hashed by `open_hash_programs`. Until then it is a statement without a text. */
static __always_inline int open_statement(struct thread *thread, u64 task, int sends)
{
    int zero = 0;
    struct place *place;
    u64 address;

    if (thread->open || thread->statements)
        return 0;
    thread->open = OPEN_NONE;
    place = text_places.lookup(&zero);
    if (!place)
        return 0;
    thread->command = COM_QUERY;
    thread->progress.length = 0;
    address = find_open_text(thread, place, task, sends);
    if (!address)
        return 0;
    thread->open = OPEN_FOUND;
    thread->began_before = 1;
    thread->id = COM_QUERY;
    thread->length = thread->hashed_bytes = thread->kept_bytes = 0;
    thread->began_at = window_start();
    thread->began_ns = thread->first_ns;
    thread->began_faults = faults_of(task);
    thread->began_wakeups = 0;
    reset_waits(thread, delay_of(task));
    start_hash(thread, address, thread->progress.length, 0);
    return 1;
}

int called__hash_pieces(struct bpf_raw_tracepoint_args *ctx)
{
    u32 tid = current_pid_tgid();
    struct thread *thread = threads.lookup(&tid);

    if (thread)
        open_hash_programs.call(ctx, hash_pieces(thread));
    return 0;
}

int called__finish_hash(struct bpf_raw_tracepoint_args *ctx)
{
    u32 tid = current_pid_tgid();
    struct thread *thread = threads.lookup(&tid);

    if (thread)
        name_open(thread, tid, finish_hash(thread));
    return 0;
}
