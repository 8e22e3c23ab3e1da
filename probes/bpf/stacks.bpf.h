/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Where the target's threads sleep and from where they wake others: user registers, call path and stack bytes.
 *
 * A site is (thread, user ip, user sp, hash of the call path). The registers of a sleeper are read from the top of
 * its kernel stack when it ends an idle period; the call path is hashed and, for a new site, the stack copied at
 * the switch-out, while its memory is the current one. Two calls of sleep() from one frame share ip and sp, so the
 * return addresses near the top of the stack are hashed too: words that point into mapped code.
 *
 * Every waking of a target thread is counted by the site that it ends and by what woke it, idle or not.
 *
 * The loader says where a register lies (REGISTER_*), how to tell a user's registers (REGISTERS_ARE_USERS) and which bits of
 * a word can be a code address (CODE_ADDRESS_MASK: pointer authentication signs return addresses in the upper ones).
 *
 * Under load (a CPU that saw more than LOADED_PER_100MS switch-outs and wakings by target threads in a tenth of a
 * second) only one in SAMPLE_1_IN is looked at, besides threads whose wake-up was blamed on a site not yet seen, and
 * wakings are not counted. The tenth before decides, so that a lasting load pays for the sample only.
 */
#define SITE_SLOTS 16384
#define WOKEN_SITES 32768
#define HASHED_BYTES 1024
#define STACK_BYTES 0x4000

/* Values of a site's code that are no hash. */
#define CODE_UNREADABLE 1
#define CODE_NEWBORN 2

enum stack_kind { STACK_SLEEPER = 0, STACK_WAKER = 1, STACK_REGISTERS = 2 };

/* Where a process has code: its own text, and the hull of its libraries. */
struct target {
    u64 text_low, text_bytes;
    u64 library_low, library_bytes;
};

struct site {
    u64 ip, sp, code;
    u32 tid, tgid;
    u32 asleep;       /* its waking has not been seen yet */
    u32 sent;         /* stacks of this thread that were copied in this window */
};

/* One site and what ended the sleep there, as in struct waking; CAUSE_HALF is in `context`. */
struct woken_key {
    u64 ip, sp, code, timer_function;
    u32 tid, tgid, context, irq, waker_tgid, waker_tid;
};

struct site_key {
    u64 ip, sp, code;
    u32 tid, kind;
};

struct stack_record {
    u64 at_ns;
    u64 ip, sp, code;
    u32 tid, tgid, kind, bytes;
    u64 registers[REGISTER_COUNT];
    u8 stack[STACK_BYTES + 0x1000];
};

BPF_HASH(targets, u32, struct target, 8192);
BPF_ARRAY(sites, struct site, SITE_SLOTS);
BPF_ARRAY(wanted, u32, SITE_SLOTS);
BPF_TABLE("lru_hash", struct site_key, u64, seen, 32768);
BPF_TABLE("hash", struct woken_key, u64, woken, WOKEN_SITES);
BPF_PERCPU_ARRAY(scratch, struct stack_record, 1);
BPF_RINGBUF_OUTPUT(stacks, STACK_PAGES);

static __always_inline struct target *target_of(u32 tgid)
{
    struct target *found = targets.lookup(&tgid);
#if TARGET_ALL
    u32 everyone = 0;
    if (!found && tgid != OWN_PID)
        found = targets.lookup(&everyone);
#endif
    return found;
}

static __always_inline int is_loaded(struct cpu_state *cpu)
{
    return cpu->looks_loaded || cpu->looks_count > LOADED_PER_100MS;
}

/* Under load: is this one of the looks that are left out? To be asked before anything that costs. */
static __always_inline int is_skipped(struct cpu_state *cpu, u32 tid)
{
    int slot = tid & (SITE_SLOTS - 1);
    u32 *asked;

    if (!is_loaded(cpu) || ++cpu->looks_skipped % SAMPLE_1_IN == 0)
        return 0;
    asked = wanted.lookup(&slot);
    if (!asked || *asked != tid)
        return 1;
    *asked = 0;
    return 0;
}

/* The load meter; a look under load stands for those that were left out before it. */
static __always_inline void note_look(struct cpu_state *cpu, u64 now)
{
    if (now - cpu->looks_window_ns > 100000000ULL) {
        cpu->looks_loaded = cpu->looks_count > LOADED_PER_100MS && now - cpu->looks_window_ns < 200000000ULL;
        cpu->looks_window_ns = now;
        cpu->looks_count = 0;
    }
    if (is_loaded(cpu)) {
        cpu->looks_count += SAMPLE_1_IN;
        count(COUNT_LOADED);
    } else {
        cpu->looks_count++;
    }
}

static __always_inline int is_code(struct target *target, u64 word)
{
    word &= CODE_ADDRESS_MASK;
    return word - target->text_low < target->text_bytes || word - target->library_low < target->library_bytes;
}

static __always_inline u64 call_path(struct target *target, struct stack_record *record)
{
    u64 *words = (u64 *)record->stack;
    u64 hash = 0xcbf29ce484222325ULL;
    int i;

#pragma unroll
    for (i = 0; i < HASHED_BYTES / 8; i++) {
        u64 word = words[i];
        if (is_code(target, word))
            hash = (hash ^ (word & CODE_ADDRESS_MASK)) * 0x100000001b3ULL;
    }
    return hash;
}

static __always_inline void send_stack(struct stack_record *record)
{
    s64 *budget = shared_at(SHARED_STACK_BYTES);
    int slot = record->tid & (SITE_SLOTS - 1);
    struct site *site = sites.lookup(&slot);
    u32 read = 0;
    int i;

    /* Leftovers of dead frames can make call paths look new without end: neither one thread nor all of them may
     * fill the reader's memory. */
    if (!budget || !site || site->sent >= THREAD_STACKS || *budget <= 0) {
        count(COUNT_UNSENT);
        return;
    }
    site->sent++;

#pragma unroll
    for (i = 0; i < STACK_BYTES / 1024; i++) {
        if (bpf_probe_read_user(record->stack + (read & (STACK_BYTES - 1)), 1024, (void *)(record->sp + read)))
            break;
        read += 1024;
    }
    /* The stack's end is seldom a round distance away, and the thread's start lies there. */
#pragma unroll
    for (i = 512; i >= 8; i >>= 1) {
        if (read < STACK_BYTES &&
            !bpf_probe_read_user(record->stack + (read & (STACK_BYTES - 1)), i, (void *)(record->sp + read)))
            read += i;
    }
    if (read > STACK_BYTES)
        read = STACK_BYTES;
    record->bytes = read;
    __sync_fetch_and_add(budget, -(s64)(offsetof(struct stack_record, stack) + read));
    count(COUNT_STACKS);
    if (stacks.ringbuf_output(record, offsetof(struct stack_record, stack) + read, RB_NO_WAKEUP))
        count(COUNT_LOST_STACKS);
}

/* Where pt_regs lies above the bottom of a kernel stack (THREAD_SIZE is in no BTF): taken once from a helper that
 * serves the current task only, where the kernel has it (5.15). The verifier forbids arithmetic on its result until it
 * has been through a map. Before, the sizes that a kernel stack can have are tried on a thread that came from user
 * space: REGISTERS_ARE_USERS tells its registers from anything else. Not taken from the idle task: the boot CPU's has
 * its stack elsewhere. */
static __always_inline void find_registers(u64 task)
{
    int zero = 0;
    s64 *offset = shared_at(SHARED_REGS_OFFSET);
    struct stack_record *record;

    if (!offset || *offset)
        return;
    record = scratch.lookup(&zero);
    if (!record)
        return;
#ifdef HAVE_task_pt_regs
    *(volatile u64 *)&record->at_ns = bpf_task_pt_regs(bpf_get_current_task_btf());
    *offset = *(volatile u64 *)&record->at_ns - read_u64(task + OFFSET_task_struct_stack);
#else
    u64 bottom = read_u64(task + OFFSET_task_struct_stack);
    s64 top;
    u64 *words = record->registers;

#pragma unroll
    for (top = 0x4000; top <= 0x10000; top <<= 1) {
        if (*offset || bpf_probe_read_kernel(words, sizeof(record->registers), (void *)(bottom + top - PT_REGS_BYTES)))
            continue;
        if (REGISTERS_ARE_USERS(words))
            *offset = top - PT_REGS_BYTES;
    }
#endif
}

static __always_inline u64 user_registers(u64 task)
{
    s64 *offset = shared_at(SHARED_REGS_OFFSET);
    if (!offset || !*offset)
        return 0;
    return read_u64(task + OFFSET_task_struct_stack) + *offset;
}

/* Registers, call path and (for a new site) stack bytes of the current thread. Returns the scratch record. */
static __always_inline struct stack_record *look_at_current(struct target *target, u64 task, u64 pid_tgid, u64 now, u32 kind)
{
    int zero = 0;
    struct stack_record *record = scratch.lookup(&zero);
    struct site_key key = {};
    u64 registers, one = 1, *times;

    if (!record)
        return 0;
    registers = user_registers(task);
    if (!registers || bpf_probe_read_kernel(record->registers, sizeof(record->registers), (void *)registers))
        return 0;
    record->at_ns = now;
    record->ip = record->registers[REGISTER_IP];
    record->sp = record->registers[REGISTER_SP];
    if (!record->ip || record->ip >> 56)
        return 0;   /* a kernel thread has no user registers */
    record->tid = (u32)pid_tgid;
    record->tgid = pid_tgid >> 32;
    record->kind = kind;
    if (bpf_probe_read_user(record->stack, HASHED_BYTES, (void *)record->sp))
        record->code = CODE_UNREADABLE;
    else
        record->code = call_path(target, record);
    key.ip = record->ip;
    key.sp = record->sp;
    key.code = record->code;
    key.tid = record->tid;
    key.kind = kind;
    times = seen.lookup(&key);
    if (times) {
        __sync_fetch_and_add(times, 1);
        return record;
    }
    seen.update(&key, &one);
    send_stack(record);
    return record;
}

/* The registers of a thread that sleeps, to be joined with stack bytes read otherwise; each once. */
static __always_inline void send_registers(u64 registers, u64 ip, u64 sp, u32 tid, u32 tgid, u64 now)
{
    int zero = 0;
    struct site_key key = {};
    struct stack_record *record = scratch.lookup(&zero);
    u64 one = 1;

    key.ip = ip;
    key.sp = sp;
    key.tid = tid;
    key.kind = STACK_REGISTERS;
    if (!record || seen.lookup(&key))
        return;
    seen.update(&key, &one);
    if (bpf_probe_read_kernel(record->registers, sizeof(record->registers), (void *)registers))
        return;
    record->at_ns = now;
    record->ip = ip;
    record->sp = sp;
    record->code = 0;
    record->tid = tid;
    record->tgid = tgid;
    record->kind = STACK_REGISTERS;
    record->bytes = 0;
    if (stacks.ringbuf_output(record, offsetof(struct stack_record, stack), RB_NO_WAKEUP))
        count(COUNT_LOST_STACKS);
}

/* One more sleep at a site has ended. A full table is a number, not a gap. */
static __always_inline void count_waking(struct site *site, u64 timer, u32 context, u32 irq, u64 waker)
{
    struct woken_key key = {};
    u64 one = 1, *times;
    s64 *half = shared_at(SHARED_WOKEN_HALF);

    key.ip = site->ip;
    key.sp = site->sp;
    key.code = site->code;
    key.tid = site->tid;
    key.tgid = site->tgid;
    key.context = context | (half ? (u32)*half : 0);
    key.timer_function = timer;
    key.irq = irq;
    if (context == WAKER_TASK) {
        key.waker_tid = (u32)waker;
        key.waker_tgid = waker >> 32;
    }
    times = woken.lookup(&key);
    if (times)
        __sync_fetch_and_add(times, 1);
    else if (woken.update(&key, &one))
        count(COUNT_UNCOUNTED);
}

static __always_inline int is_counting(struct cpu_state *cpu)
{
    s64 *counting = shared_at(SHARED_COUNTING);
    return counting && *counting && !is_loaded(cpu);
}

/* A thread is being woken. One that was not seen going to sleep (it slept when the trace began) is known by its
 * registers alone. */
static __always_inline void note_waking(struct cpu_state *cpu, u64 task, u32 tid, u32 context, u32 irq, u64 waker)
{
    int slot = tid & (SITE_SLOTS - 1);
    struct site *site = sites.lookup(&slot);
    struct site found = {};
    u64 registers;

    if (!site)
        return;
    if (site->tid == tid) {
        if (!site->asleep)
            return;   /* it had not gone to sleep yet */
        site->asleep = 0;
        count_waking(site, cpu->timer_active, context, irq, waker);
        return;
    }
    found.tid = tid;
    found.tgid = read_u32(task + OFFSET_task_struct_tgid);
    if (!target_of(found.tgid))
        return;
    registers = user_registers(task);
    if (!registers)
        return;
    found.ip = read_u64(registers + 8 * REGISTER_IP);
    found.sp = read_u64(registers + 8 * REGISTER_SP);
    if (!found.ip || found.ip >> 56)
        return;
    send_registers(registers, found.ip, found.sp, tid, found.tgid, bpf_ktime_get_ns());
    count_waking(&found, cpu->timer_active, context, irq, waker);
}

/* A thread that was created and is woken for the first time stands where threads start: it has no stack to copy. A new
 * process has its parent's. */
static __always_inline void note_birth(u64 task, u32 tid)
{
    int slot = tid & (SITE_SLOTS - 1);
    struct site *site = sites.lookup(&slot);
    u32 tgid = read_u32(task + OFFSET_task_struct_tgid);
    u64 registers = user_registers(task);

    if (!site || !registers || tid == tgid || !target_of(tgid))
        return;
    site->tid = tid;
    site->tgid = tgid;
    site->ip = read_u64(registers + 8 * REGISTER_IP);
    site->sp = read_u64(registers + 8 * REGISTER_SP);
    site->code = CODE_NEWBORN;
    site->asleep = 0;
    site->sent = 0;
}

/* A target thread goes to sleep. */
static __always_inline void note_sleep(struct cpu_state *cpu, u64 task, u64 pid_tgid)
{
    struct target *target;
    struct stack_record *record;
    struct site *site;
    int slot = (u32)pid_tgid & (SITE_SLOTS - 1);
    u64 now;

    if (is_skipped(cpu, (u32)pid_tgid))
        return;
    find_registers(task);
    target = target_of(pid_tgid >> 32);
    if (!target)
        return;
    now = bpf_ktime_get_ns();
    note_look(cpu, now);
    if (!is_sleep(0, read_u32(task + OFFSET_task_struct_state)))
        return;   /* a signal was pending */
    count(COUNT_SLEEPS);
    site = sites.lookup(&slot);
    if (!site)
        return;
    if (site->tid != (u32)pid_tgid) {
        site->tid = 0;
        site->sent = 0;
    } else if (site->asleep && is_counting(cpu)) {
        /* Woken in the instant between the switch-out and this probe: by whom is not known. */
        count_waking(site, 0, WAKER_UNSEEN, 0, 0);
    }
    site->asleep = 0;
    record = look_at_current(target, task, pid_tgid, now, STACK_SLEEPER);
    if (!record)
        return;
    site->ip = record->ip;
    site->sp = record->sp;
    site->code = record->code;
    site->tgid = record->tgid;
    site->tid = record->tid;
    site->asleep = 1;
}

/* A thread that an idle CPU switches to: where had it slept? Where its switch-out was not looked at (it slept before the
 * trace began, or the CPU was loaded) its registers are sent, to be joined with stack bytes read otherwise. */
static __always_inline void note_site(struct cpu_state *cpu, u64 task, u32 tid, u32 tgid)
{
    int slot = tid & (SITE_SLOTS - 1);
    u64 registers = user_registers(task);
    struct site *site;
    u32 *asked;

    if (!registers || !target_of(tgid))
        return;
    cpu->period.site_ip = read_u64(registers + 8 * REGISTER_IP);
    cpu->period.site_sp = read_u64(registers + 8 * REGISTER_SP);
    if (!cpu->period.site_ip || cpu->period.site_ip >> 56)
        return;
    cpu->period.flags |= IDLE_SITE;
    site = sites.lookup(&slot);
    if (site && site->tid == tid && site->ip == cpu->period.site_ip && site->sp == cpu->period.site_sp) {
        cpu->period.site_code = site->code;
        cpu->period.flags |= IDLE_SITE_FRESH;
        return;
    }
    asked = wanted.lookup(&slot);
    if (asked)
        *asked = tid;
    send_registers(registers, cpu->period.site_ip, cpu->period.site_sp, tid, tgid, cpu->period.enter_ns);
}

/* The current thread wakes another: from where? */
static __always_inline void note_waker(struct cpu_state *cpu, struct waking *waking, u64 task, u64 pid_tgid)
{
    struct target *target;
    struct stack_record *record;

    if (is_skipped(cpu, waking->waker_tid))
        return;
    target = target_of(waking->waker_tgid);
    if (!target)
        return;
    note_look(cpu, waking->at_ns);
    record = look_at_current(target, task, pid_tgid, waking->at_ns, STACK_WAKER);
    if (!record)
        return;
    waking->ip = record->ip;
    waking->sp = record->sp;
    waking->code = record->code;
}
