// Ground truth in Rust: threads that sleep in known functions at exact rates, deadlines absolute.
//
//     sleepers-rust DURATION_S [sleep=RATE_HZ] [park=RATE_HZ]
//
// Chains: std::thread -> NAME_level1 -> NAME_level2 -> wait_NAME -> std. `park` waits on a condition variable.
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

// Threads that are past the barrier: whoever sleeps from then on sleeps in its chain.
static STARTED: AtomicUsize = AtomicUsize::new(0);

extern "C" {
    fn gettid() -> i32;
}

// std::hint::black_box is younger (1.66) than Debian 12's compiler: work after a call, so that it is no tail call.
fn black_box<T: Copy>(value: T) {
    unsafe { std::ptr::read_volatile(&value) };
}

#[inline(never)]
pub fn wait_sleep(next: Instant) {
    let now = Instant::now();
    if next > now {
        thread::sleep(next - now);
    }
    black_box(next);
}

#[inline(never)]
pub fn wait_park(next: Instant) {
    let mutex = Mutex::new(());
    let condition = Condvar::new();
    let mut guard = mutex.lock().unwrap();
    loop {
        let now = Instant::now();
        if now >= next {
            break;
        }
        guard = condition.wait_timeout(guard, next - now).unwrap().0;
    }
    black_box(&guard);
}

macro_rules! chain {
    ($level1:ident, $level2:ident, $wait:ident) => {
        #[inline(never)]
        pub fn $level2(next: Instant) {
            $wait(next);
            black_box(next);
        }
        #[inline(never)]
        pub fn $level1(next: Instant) {
            $level2(next);
            black_box(next);
        }
    };
}

chain!(sleep_level1, sleep_level2, wait_sleep);
chain!(park_level1, park_level2, wait_park);

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let duration: f64 = arguments.get(1).and_then(|text| text.parse().ok()).unwrap_or(0.0);
    if duration <= 0.0 {
        eprintln!("usage: sleepers-rust DURATION_S [sleep=RATE_HZ] [park=RATE_HZ]");
        std::process::exit(2);
    }
    let tasks: [(&str, f64, fn(Instant)); 2] = [("sleep", 31.0, sleep_level1), ("park", 19.0, park_level1)];
    let ready = Arc::new(Barrier::new(tasks.len() + 1));
    let start = Instant::now() + Duration::from_millis(20);
    let end = start + Duration::from_secs_f64(duration);
    let mut described = Vec::new();
    for (name, default, body) in tasks {
        let rate = arguments
            .iter()
            .filter_map(|argument| argument.strip_prefix(name)?.strip_prefix('=')?.parse::<f64>().ok())
            .last()
            .unwrap_or(default);
        let (sender, receiver) = std::sync::mpsc::channel();
        let ready = ready.clone();
        thread::Builder::new()
            .name(name.to_string())
            .spawn(move || {
                sender.send(unsafe { gettid() }).unwrap();
                ready.wait();
                STARTED.fetch_add(1, Ordering::SeqCst);
                let mut count = 0u32;
                while Instant::now() < end {
                    count += 1;
                    body(start + Duration::from_secs_f64(f64::from(count) / rate));
                }
            })
            .unwrap();
        described.push(format!("\"{}\": {{\"tid\": {}, \"rate_hz\": {}}}", name, receiver.recv().unwrap(), rate));
    }
    ready.wait();
    while STARTED.load(Ordering::SeqCst) < tasks.len() {
        thread::sleep(Duration::from_millis(1));
    }
    println!("{{\"pid\": {}, \"threads\": {{{}}}}}", std::process::id(), described.join(", "));
    thread::sleep(end + Duration::from_secs(1) - Instant::now());
}
