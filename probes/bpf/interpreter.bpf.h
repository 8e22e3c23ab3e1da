/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Which functions of an interpreter the current thread is in: CPython's frames, from the innermost outwards.
 *
 * Python calls of Python functions do not recurse in C: sleeps of different functions have one C stack. The thread's frames are
 * linked words of its own memory; where they lie is told by user space for each process, and they are read at the sleep,
 * when they cannot change. All of it is a stranger's memory: both loops are bounded, and a read that fails ends them.
 *
 * The loader says where a task's thread pointer is (OFFSET_task_struct_thread_pointer); without it no frames are read.
 */
#define INTERPRETER_FRAMES 32
#define INTERPRETER_THREADS 256
#define FRAME_BYTES 80
#define FRAME_WORDS (2 * (INTERPRETER_FRAMES + 1))
/* No pointer lies between a thread's state and its frame. */
#define NO_INNER (~0U)

/* `threads`: address of the pointer to the first thread's state, 0 where the process is no interpreter. The others are offsets:
 * in a thread's state, then in a frame (stacks/interpreter.py). */
struct interpreter {
    u64 threads;
    u32 next, thread_id, current, inner;
    u32 code, previous, instruction, entry;
};

static __always_inline u64 user_word(u64 address)
{
    u64 value;

    bpf_probe_read_user(&value, sizeof(value), (void *)address);   /* which writes 0 where it fails */
    return value;
}

/* The state of the thread whose thread pointer is `identity`; `known` is where it was the last time. */
static __always_inline u64 thread_state(struct interpreter *interpreter, u64 *known, u64 identity)
{
    u64 state = *known;
    int i;

    if (state && user_word(state + interpreter->thread_id) == identity)
        return state;
    state = user_word(interpreter->threads);
    /* One way out of the loop: the verifier goes each of them at each turn. */
#pragma clang loop unroll(disable)
    for (i = 0; i < INTERPRETER_THREADS; i++) {
        if (!state || user_word(state + interpreter->thread_id) == identity)
            break;
        state = user_word(state + interpreter->next);
    }
    if (state && user_word(state + interpreter->thread_id) != identity)
        state = 0;
    *known = state;
    return state;
}

/* Two words a frame: its code, and its instruction with what the frame says of its beginning in the highest byte; two zeros
 * follow the outermost one. Returns how many words there are, and adds them to the hash. */
static __always_inline u32 read_frames(struct interpreter *interpreter, u64 *known, u64 identity, u8 *scratch, u64 *words, u64 *hash)
{
    u64 at, code, instruction, state = thread_state(interpreter, known, identity);
    int i;

    if (!state)
        return 0;
    at = user_word(state + interpreter->current);
    if (at && interpreter->inner != NO_INNER)
        at = user_word(at + interpreter->inner);
#pragma clang loop unroll(disable)
    for (i = 0; i < INTERPRETER_FRAMES; i++) {
        if (!at) {
            words[2 * i] = words[2 * i + 1] = 0;
            return 2 * i + 2;
        }
        if (bpf_probe_read_user(scratch, FRAME_BYTES, (void *)at))
            return 2 * i;
        code = *(u64 *)(scratch + (interpreter->code & 0x78));
        instruction = *(u64 *)(scratch + (interpreter->instruction & 0x78)) & ((1ULL << 56) - 1);
        instruction |= (u64)scratch[interpreter->entry & 0x7f] << 56;
        at = *(u64 *)(scratch + (interpreter->previous & 0x78));
        words[2 * i] = code;
        words[2 * i + 1] = instruction;
        *hash = (*hash ^ code) * 0x100000001b3ULL;
        *hash = (*hash ^ instruction) * 0x100000001b3ULL;
    }
    return 2 * INTERPRETER_FRAMES;
}
