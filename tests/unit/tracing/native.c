/* The kernel's idle-exit state machine, compiled for the tests: events in, records out. */
#include <stdint.h>
#include <string.h>

typedef uint64_t u64;
typedef uint32_t u32;
#include "idle_exit.h"

unsigned long state_bytes(void) { return sizeof(struct cpu_state); }
unsigned long record_bytes(void) { return sizeof(struct idle_exit); }
unsigned long phase_offset(void) { return __builtin_offsetof(struct cpu_state, phase); }

int enter(struct cpu_state *cpu, u64 now, u32 number, u32 state, struct idle_exit *out)
{
    int whole = idle_enter(cpu, now);
    if (whole)
        memcpy(out, &cpu->period, sizeof(*out));
    cpu->hardirq = cpu->softirq = 0;
    cpu->timer_active = 0;
    idle_restart(cpu, now, number, state);
    return whole;
}

void leave(struct cpu_state *cpu, u64 now) { idle_leave(cpu, now); }
void evidence(struct cpu_state *cpu, u32 kind, u32 irq) { idle_evidence(cpu, kind, irq); }

void hardirq(struct cpu_state *cpu, u32 irq)
{
    cpu->hardirq = irq + 1;
    idle_evidence(cpu, EVIDENCE_DEVICE, irq);
}

void hardirq_end(struct cpu_state *cpu, u64 now)
{
    cpu->hardirq = 0;
    cpu->hardirq_end_ns = now;
}

void softirq(struct cpu_state *cpu, u64 now, u32 number)
{
    cpu->softirq = number + 1;
    cpu->softirq_after_irq = now - cpu->hardirq_end_ns < 20000;
    idle_evidence(cpu, EVIDENCE_SOFTIRQ, number);
}

void softirq_end(struct cpu_state *cpu) { cpu->softirq = 0; }
void timer(struct cpu_state *cpu, u64 function, int tick, int wheel) { idle_timer(cpu, function, tick, wheel); }
void timer_end(struct cpu_state *cpu) { cpu->timer_active = 0; }

void waking(struct cpu_state *cpu, struct waking *out, u64 now, u32 number, u32 tid, u32 waker)
{
    memset(out, 0, sizeof(*out));
    out->at_ns = now;
    out->wakee_tid = tid;
    out->waker_tid = waker;
    out->waker_cpu = number;
    out->context = idle_context(cpu, &out->irq);
    out->timer_function = cpu->timer_active;
    if (is_open(cpu) && !cpu->period.woken_tid)
        cpu->period.woken_tid = tid;
}

unsigned long waking_bytes(void) { return sizeof(struct waking); }
int switch_to(struct cpu_state *cpu, u64 now, u32 tid, struct waking *from) { return idle_switch(cpu, now, tid, tid, from); }
