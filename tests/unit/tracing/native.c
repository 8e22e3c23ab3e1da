/* The kernel's idle-exit state machine, compiled for the tests: events in, records out. */
#include <stdint.h>
#include <string.h>

typedef uint64_t u64;
typedef uint32_t u32;
typedef uint8_t u8;
#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif
#include "idle_exit.h"
#include "handlers.h"
#include "causes.h"

unsigned long state_bytes(void) { return sizeof(struct cpu_state); }
unsigned long record_bytes(void) { return sizeof(struct idle_exit); }
unsigned long gap_offset(void) { return __builtin_offsetof(struct cpu_state, gap); }
unsigned long phase_offset(void) { return __builtin_offsetof(struct cpu_state, phase); }

static u32 polls;
void poll_states(u32 states) { polls = states; }

int enter(struct cpu_state *cpu, u64 now, u32 number, u32 state, struct idle_exit *out)
{
    int whole = idle_enter(cpu, now);
    if (whole)
        memcpy(out, &cpu->period, sizeof(*out));
    idle_restart(cpu, now, number, state, polls >> state & 1 ? IDLE_POLLED : 0);
    return whole;
}

void leave(struct cpu_state *cpu, u64 now) { idle_leave(cpu, now); }
void evidence(struct cpu_state *cpu, u32 kind, u32 irq) { idle_add_evidence(cpu, kind, irq); }
void refine(struct cpu_state *cpu, u32 kind, u32 irq) { idle_refine_evidence(cpu, kind, irq); }
void hardirq(struct cpu_state *cpu, u32 irq) { idle_enter_hardirq(cpu, irq); }
void hardirq_end(struct cpu_state *cpu, u32 returned) { idle_exit_hardirq(cpu, returned); }
void raise_softirq(struct cpu_state *cpu, u32 number, int in_interrupt) { idle_raise_softirq(cpu, number, in_interrupt); }
void softirq(struct cpu_state *cpu, u32 number) { idle_enter_softirq(cpu, number); }
u32 context(struct cpu_state *cpu, int in_interrupt) { u32 irq; return idle_waker_context(cpu, &irq, in_interrupt); }
void softirq_end(struct cpu_state *cpu) { idle_exit_softirq(cpu); }
void timer(struct cpu_state *cpu, u64 function, int tick, int wheel) { idle_enter_timer(cpu, function, tick, wheel); }
void down(struct cpu_state *cpu, u64 now) { idle_set_offline(cpu, now); }
void timer_end(struct cpu_state *cpu) { idle_exit_timer(cpu); }
void ran(struct cpu_state *cpu, u64 now, u32 tid) { idle_start_task(cpu, now, tid, tid); }
void departs(struct cpu_state *cpu, u32 tid, u64 ns, int preempted) { idle_add_task_time(cpu, tid, ns, preempted); }
int sleeps(int preempted, u32 state) { return is_sleep(preempted, state); }

void waking(struct cpu_state *cpu, struct waking *out, u32 number, u32 tid, u32 waker)
{
    u32 irq, context = idle_waker_context(cpu, &irq, 0);

    memset(out, 0, sizeof(*out));
    idle_fill_waking(cpu, out, number, tid, waker, context, irq);
}

unsigned long waking_bytes(void) { return sizeof(struct waking); }
void switched_out(struct waking *waking, u64 switches, u32 on_cpu) { waking->switches = switches; waking->on_cpu = on_cpu; }
int switch_to(struct cpu_state *cpu, u64 now, u32 tid, u64 switches, struct waking *from)
{
    return idle_switch(cpu, now, tid, tid, switches, from);
}

unsigned long key_bytes(void) { return sizeof(struct cause_key); }
unsigned long sum_bytes(void) { return sizeof(struct cause_sum); }
unsigned long total_bytes(void) { return sizeof(struct cpu_total); }
void key_of(struct idle_exit *period, struct cause_key *key) { fill_cause_key(period, key); }
void add(struct cause_sum *sum, struct idle_exit *period) { add_exit_to_cause(sum, period); }
int ran_until(struct cause_sum *sum, struct cpu_state *cpu, u64 now)
{
    int whole = idle_enter(cpu, now);

    add_run_time_to_cause(sum, cpu);
    return whole;
}
void add_total(struct cpu_total *total, struct idle_exit *period) { add_exit_to_total(total, period); }
int in_window(struct cpu_total *total, struct idle_exit *period) { return is_in_window(total, period); }
u32 chosen(u32 cpu, u32 sequence) { return sample_hash(cpu, sequence); }
