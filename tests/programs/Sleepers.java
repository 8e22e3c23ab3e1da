// SPDX-License-Identifier: Apache-2.0
// Ground truth in Java: two threads whose methods wait at known rates, and which note each return.
//
//	java Sleepers [PARK_HZ] [WAIT_HZ]      until its input ends; then it prints what it noted
//
// Chains: parkThread -> parkOuter -> parkInner -> LockSupport.parkNanos; waitThread -> waitOuter -> waitInner -> wait.
import java.util.concurrent.locks.LockSupport;

public final class Sleepers {
    private static final int MOST = 1 << 20;
    private static volatile boolean ended;

    static final class Notes {
        final long[] at = new long[MOST];
        volatile int count;

        void add() {
            if (count < MOST) {
                at[count] = System.nanoTime();
                count = count + 1;
            }
        }
    }

    static void parkInner(long ns, Notes notes) {
        LockSupport.parkNanos(ns);
        notes.add();
    }

    static void parkOuter(long ns, Notes notes) {
        parkInner(ns, notes);
    }

    static void parkThread(long ns, Notes notes) {
        while (!ended) {
            parkOuter(ns, notes);
        }
    }

    static void waitInner(Object lock, long ns, Notes notes) throws InterruptedException {
        synchronized (lock) {
            lock.wait(ns / 1000000);
        }
        notes.add();
    }

    static void waitOuter(Object lock, long ns, Notes notes) throws InterruptedException {
        waitInner(lock, ns, notes);
    }

    static void waitThread(Object lock, long ns, Notes notes) {
        try {
            while (!ended) {
                waitOuter(lock, ns, notes);
            }
        } catch (InterruptedException stopped) {
            return;
        }
    }

    public static void main(String[] words) throws Exception {
        long park = (long) (1e9 / (words.length > 0 ? Double.parseDouble(words[0]) : 37));
        long wait = (long) (1e9 / (words.length > 1 ? Double.parseDouble(words[1]) : 13));
        Notes parked = new Notes();
        Notes waited = new Notes();
        Object lock = new Object();
        Thread first = new Thread(() -> parkThread(park, parked), "parker");
        Thread second = new Thread(() -> waitThread(lock, wait, waited), "waiter");
        first.start();
        second.start();
        while (parked.count < 3 || waited.count < 3) {
            Thread.sleep(10);
        }
        System.out.println("{\"pid\": " + ProcessHandle.current().pid() + "}");
        System.out.flush();
        while (System.in.read() >= 0) {
        }
        ended = true;
        first.join();
        second.join();
        StringBuilder text = new StringBuilder("{\"parker\": [");
        for (int i = 0; i < parked.count; i++) {
            text.append(i == 0 ? "" : ", ").append(parked.at[i]);
        }
        text.append("], \"waiter\": [");
        for (int i = 0; i < waited.count; i++) {
            text.append(i == 0 ? "" : ", ").append(waited.at[i]);
        }
        System.out.println(text.append("]}"));
    }
}
