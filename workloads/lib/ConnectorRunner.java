// SPDX-License-Identifier: Apache-2.0
// Asks one statement through a JDBC connector and says what it did: java -cp CONNECTOR.jar ConnectorRunner.java FILE
// FILE holds properties: url, sql with a ? for each pair of numbers in bounds, between which it is drawn, clients,
// rate_hz (0: as fast as it goes), duration_s or queries, seed, and connector.NAME, which go to the connector.
// "ready" is printed when all are connected; then queries=, p50_ms= and so on. Each query is prepared, executed and
// closed: what that is on the wire is the connector's business, and what is compared.
import java.io.FileReader;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;

public class ConnectorRunner {
    private final Properties said;
    private final long[] bounds;
    private final AtomicLong left;
    private final CountDownLatch begin = new CountDownLatch(1);
    private volatile long startNs;
    private volatile long endNs;

    private ConnectorRunner(Properties said) {
        this.said = said;
        bounds = Arrays.stream(said.getProperty("bounds").split(" ")).filter(word -> !word.isEmpty())
                .mapToLong(Long::parseLong).toArray();
        long queries = whole("queries");
        left = new AtomicLong(queries > 0 ? queries : Long.MAX_VALUE);
    }

    public static void main(String[] words) throws Exception {
        Properties said = new Properties();
        try (FileReader file = new FileReader(words[0])) {
            said.load(file);
        }
        new ConnectorRunner(said).run();
    }

    private long whole(String name) {
        return Long.parseLong(said.getProperty(name));
    }

    private void run() throws Exception {
        int clients = (int) whole("clients");
        CountDownLatch connected = new CountDownLatch(clients);
        List<Client> all = new ArrayList<>();
        for (int number = 0; number < clients; number++) {
            Client client = new Client(whole("seed") * 1000 + number, connected);
            all.add(client);
            client.start();
        }
        connected.await();
        double durationS = Double.parseDouble(said.getProperty("duration_s"));
        startNs = System.nanoTime();
        endNs = durationS > 0 ? startNs + (long) (durationS * 1e9) : Long.MAX_VALUE;
        System.out.println("ready");
        begin.countDown();
        long[] latencies = new long[0];
        for (Client client : all) {
            client.join();
            if (client.failure != null) {
                // The connector's own words and no trace: they say what the server did not like.
                System.out.println("error: " + client.failure);
                System.exit(1);
            }
            int before = latencies.length;
            latencies = Arrays.copyOf(latencies, before + client.done);
            System.arraycopy(client.latencies, 0, latencies, before, client.done);
        }
        Arrays.sort(latencies);
        System.out.println("queries=" + latencies.length);
        for (int percent : new int[] {50, 95, 99}) {
            if (latencies.length > 0) {
                int at = (int) Math.ceil(latencies.length * percent / 100.0) - 1;
                System.out.println("p" + percent + "_ms=" + String.format("%.4f", latencies[Math.max(0, at)] / 1e6));
            }
        }
    }

    private class Client extends Thread {
        private final Random random;
        private final CountDownLatch connected;
        private long[] latencies = new long[1 << 14];
        private int done;
        private Exception failure;

        Client(long seed, CountDownLatch connected) {
            random = new Random(seed);
            this.connected = connected;
        }

        @Override
        public void run() {
            Properties account = new Properties();
            for (String name : said.stringPropertyNames()) {
                if (name.startsWith("connector.")) {
                    account.setProperty(name.substring("connector.".length()), said.getProperty(name));
                }
            }
            try (Connection connection = DriverManager.getConnection(said.getProperty("url"), account)) {
                once(connection); // loads and compiles what is measured next
                connected.countDown();
                begin.await();
                ask(connection);
            } catch (Exception error) {
                failure = error;
                connected.countDown();
            }
        }

        private void ask(Connection connection) throws Exception {
            double rateHz = Double.parseDouble(said.getProperty("rate_hz")) / whole("clients");
            double dueNs = startNs;
            while (left.getAndDecrement() > 0) {
                if (rateHz > 0) {
                    // Due at exponentially distributed times whether or not the server keeps up.
                    dueNs += -Math.log(1 - random.nextDouble()) / rateHz * 1e9;
                    for (long waitNs; (waitNs = (long) dueNs - System.nanoTime()) > 0 && dueNs < endNs; ) {
                        LockSupport.parkNanos(waitNs);
                    }
                } else {
                    dueNs = System.nanoTime();
                }
                if (System.nanoTime() >= endNs) {
                    return;
                }
                once(connection);
                if (done == latencies.length) {
                    latencies = Arrays.copyOf(latencies, 2 * done);
                }
                latencies[done++] = System.nanoTime() - (long) dueNs;
            }
        }

        private void once(Connection connection) throws Exception {
            try (PreparedStatement statement = connection.prepareStatement(said.getProperty("sql"))) {
                for (int place = 0; place < bounds.length / 2; place++) {
                    long low = bounds[2 * place];
                    long many = bounds[2 * place + 1] - low + 1;
                    statement.setLong(place + 1, low + (long) (random.nextDouble() * many));
                }
                try (ResultSet rows = statement.executeQuery()) {
                    while (rows.next()) {
                        rows.getString(1);
                    }
                }
            }
        }
    }
}
