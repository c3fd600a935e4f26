import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.zip.CRC32;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.CloseOptions;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.LagInfo;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.ThreadMetadata;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.ReadOnlyKeyValueStore;
import org.apache.kafka.streams.state.ReadOnlyWindowStore;
import org.apache.kafka.streams.state.RocksDBConfigSetter;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.TimestampedKeyValueStore;
import org.apache.kafka.streams.state.TimestampedWindowStore;
import org.apache.kafka.streams.state.ValueAndTimestamp;
import org.rocksdb.Options;

/**
 * The side of Kafka Streams in the comparison: puts each record of its source under the record's key.
 *
 * <pre>
 * java BenchApp '{"app": ..., "bootstrap": ..., ...}'       (proof/benchmarks/compare_process.py has the fields)
 *
 * stdin      processed | lag | digest [FROM_MS TO_MS] | stop, or the end of stdin
 * stdout     JSON, one object a line: the events restore, processed, drained with at_ns (CLOCK_MONOTONIC), and answers
 * </pre>
 */
public final class BenchApp {
    static final String STORE = "kv";
    static final ObjectMapper JSON = new ObjectMapper();
    static final Serde<byte[]> BYTES = Serdes.ByteArray();
    // Kafka Streams compacts universally: there the estimate of bytes to compact means nothing, and a compaction may
    // stay pending for good without RocksDB ever starting it.
    static final Set<String> RUNNING = Set.of("num-running-compactions", "num-running-flushes");
    static final Set<String> PENDING = Set.of("compaction-pending", "mem-table-flush-pending");
    static final long PENDING_NS = 2_000_000_000L;
    static final AtomicLong PROCESSED = new AtomicLong();
    static final AtomicLong RESTORED = new AtomicLong();
    static final AtomicInteger BEGUN = new AtomicInteger();
    static final AtomicBoolean RESTORING = new AtomicBoolean();

    private static JsonNode plan;
    private static KafkaStreams streams;

    public static void main(String[] args) throws Exception {
        plan = JSON.readTree(args[0]);
        streams = new KafkaStreams(topology(), settings());
        streams.setGlobalStateRestoreListener(new Watcher());
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.start();
        try (BufferedReader stdin = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            for (String line = stdin.readLine(); line != null && !line.equals("stop"); line = stdin.readLine()) {
                print(answer(List.of(line.split(" "))));
            }
        } finally {
            streams.close(CloseOptions
                .groupMembershipOperation(CloseOptions.GroupMembershipOperation.LEAVE_GROUP)
                .withTimeout(Duration.ofSeconds(60)));
        }
    }

    static Properties settings() {
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, plan.get("app").asText());
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, plan.get("bootstrap").asText());
        settings.put(StreamsConfig.STATE_DIR_CONFIG, plan.get("state_dir").asText());
        boolean exactly = plan.get("guarantee").asText().equals("exactly_once");
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG,
            exactly ? StreamsConfig.EXACTLY_ONCE_V2 : StreamsConfig.AT_LEAST_ONCE);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, plan.get("commit_ms").asInt());
        settings.put(StreamsConfig.NUM_STANDBY_REPLICAS_CONFIG, plan.get("standbys").asInt());
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.ByteArraySerde.class);
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.ByteArraySerde.class);
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG), plan.get("detect_ms").asInt());
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.HEARTBEAT_INTERVAL_MS_CONFIG), plan.get("detect_ms").asInt() / 4);
        if (!plan.get("tuned").isEmpty()) {
            settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, plan.get("partitions").asInt());
        }
        if (tuned("writes")) {
            settings.put(StreamsConfig.ROCKSDB_CONFIG_SETTER_CLASS_CONFIG, LargerBuffers.class);
        }
        if (tuned("reads")) {
            settings.put(StreamsConfig.restoreConsumerPrefix(ConsumerConfig.MAX_POLL_RECORDS_CONFIG), 20_000);
            settings.put(StreamsConfig.restoreConsumerPrefix(ConsumerConfig.FETCH_MAX_BYTES_CONFIG), 100 << 20);
            settings.put(StreamsConfig.restoreConsumerPrefix(ConsumerConfig.MAX_PARTITION_FETCH_BYTES_CONFIG), 16 << 20);
            settings.put(StreamsConfig.restoreConsumerPrefix(ConsumerConfig.RECEIVE_BUFFER_CONFIG), 4 << 20);
        }
        return settings;
    }

    static Topology topology() {
        Topology topology = new Topology();
        topology.addSource("source", plan.get("source").asText());
        topology.addProcessor("put", Put::new, "source");
        if (windowed()) {
            Duration retention = Duration.ofMillis(plan.get("retention_ms").asLong());
            Duration size = Duration.ofMillis(plan.get("window_ms").asLong());
            topology.addStateStore(Stores.timestampedWindowStoreBuilder(
                Stores.persistentTimestampedWindowStore(STORE, retention, size, false), BYTES, BYTES), "put");
        } else {
            topology.addStateStore(Stores.timestampedKeyValueStoreBuilder(
                Stores.persistentTimestampedKeyValueStore(STORE), BYTES, BYTES), "put");
        }
        return topology;
    }

    static boolean tuned(String part) {
        for (JsonNode one : plan.get("tuned")) {
            if (one.asText().equals(part)) {
                return true;
            }
        }
        return false;
    }

    static boolean windowed() {
        return plan.get("kind").asText().equals("window");
    }

    static Map<String, Object> answer(List<String> words) {
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("answer", words.get(0));
        switch (words.get(0)) {
            case "processed" -> found.put("processed", PROCESSED.get());
            case "lag" -> {
                long lag = 0;
                for (Map<Integer, LagInfo> partitions : streams.allLocalStorePartitionLags().values()) {
                    for (LagInfo info : partitions.values()) {
                        lag = Math.max(lag, info.offsetLag());
                    }
                }
                Collection<ThreadMetadata> threads = streams.metadataForLocalThreads();
                found.put("active", threads.stream().mapToInt(thread -> thread.activeTasks().size()).sum());
                found.put("standby", threads.stream().mapToInt(thread -> thread.standbyTasks().size()).sum());
                found.put("lag", lag);
            }
            case "digest" -> {
                long from = words.size() > 1 ? Long.parseLong(words.get(1)) : Long.MIN_VALUE;
                long upto = words.size() > 1 ? Long.parseLong(words.get(2)) : Long.MAX_VALUE;
                digest(found, from, upto);
            }
            default -> throw new IllegalArgumentException(words.get(0));
        }
        return found;
    }

    /** Rows and the sum of their CRC-32 over key, window start (0 without one) and value. */
    static void digest(Map<String, Object> found, long from, long upto) {
        long[] totals = new long[2];
        if (windowed()) {
            ReadOnlyWindowStore<byte[], ValueAndTimestamp<byte[]>> rows = streams.store(
                StoreQueryParameters.fromNameAndType(STORE, QueryableStoreTypes.timestampedWindowStore()));
            try (KeyValueIterator<Windowed<byte[]>, ValueAndTimestamp<byte[]>> all = rows.all()) {
                all.forEachRemaining(row -> {
                    long start = row.key.window().start();
                    if (start >= from && start < upto) {
                        add(totals, row.key.key(), start, row.value.value());
                    }
                });
            }
        } else {
            ReadOnlyKeyValueStore<byte[], ValueAndTimestamp<byte[]>> rows = streams.store(
                StoreQueryParameters.fromNameAndType(STORE, QueryableStoreTypes.timestampedKeyValueStore()));
            try (KeyValueIterator<byte[], ValueAndTimestamp<byte[]>> all = rows.all()) {
                all.forEachRemaining(row -> add(totals, row.key, 0, row.value.value()));
            }
        }
        found.put("rows", totals[0]);
        found.put("sum", totals[1]);
    }

    static void add(long[] totals, byte[] key, long start, byte[] value) {
        CRC32 crc = new CRC32();
        crc.update(key);
        crc.update(ByteBuffer.allocate(8).putLong(0, start));
        crc.update(value);
        totals[0]++;
        totals[1] += crc.getValue();
    }

    /** Reports that every partition has processed a record, and later that RocksDB has nothing left to do. */
    static void begun() {
        if (BEGUN.incrementAndGet() == plan.get("partitions").asInt()) {
            event("processed");
            Thread waiter = new Thread(BenchApp::waitDrained, "drained");
            waiter.setDaemon(true);
            waiter.start();
        }
    }

    /** Reports since when RocksDB is idle: nothing runs, and no work is pending, or RocksDB left it alone for long. */
    static void waitDrained() {
        try {
            long idleNs = 0;
            while (true) {
                long nowNs = System.nanoTime();
                idleNs = any(RUNNING) ? 0 : idleNs == 0 ? nowNs : idleNs;
                if (idleNs != 0 && (nowNs - idleNs > PENDING_NS || !any(PENDING))) {
                    event("drained", idleNs);
                    return;
                }
                Thread.sleep(5);
            }
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    static boolean any(Set<String> names) {
        return streams.metrics().values().stream()
            .filter(one -> names.contains(one.metricName().name()))
            .anyMatch(one -> ((Number) one.metricValue()).doubleValue() > 0);
    }

    static void event(String name) {
        event(name, System.nanoTime());
    }

    static void event(String name, long atNs) {
        print(Map.of("event", name, "at_ns", atNs, "restored", RESTORED.get()));
    }

    static synchronized void print(Map<String, ?> fields) {
        try {
            System.out.write((JSON.writeValueAsString(fields) + "\n").getBytes(StandardCharsets.UTF_8));
            System.out.flush();
        } catch (java.io.IOException error) {
            throw new java.io.UncheckedIOException(error);
        }
    }

    /** Puts each record of the source. */
    static final class Put implements Processor<byte[], byte[], Void, Void> {
        private TimestampedKeyValueStore<byte[], byte[]> rows;
        private TimestampedWindowStore<byte[], byte[]> windows;
        private long windowMs;
        private boolean begun;

        @Override
        public void init(ProcessorContext<Void, Void> context) {
            if (windowed()) {
                windows = context.getStateStore(STORE);
                windowMs = plan.get("window_ms").asLong();
            } else {
                rows = context.getStateStore(STORE);
            }
        }

        @Override
        public void process(Record<byte[], byte[]> record) {
            long time = record.timestamp();
            if (windows != null) {
                windows.put(record.key(), ValueAndTimestamp.make(record.value(), time), time - time % windowMs);
            } else {
                rows.put(record.key(), ValueAndTimestamp.make(record.value(), time));
            }
            PROCESSED.incrementAndGet();
            if (!begun) {
                begun = true;
                begun();
            }
        }
    }

    /** Reports the beginning of the first restore. */
    static final class Watcher implements StateRestoreListener {
        @Override
        public void onRestoreStart(TopicPartition changelog, String store, long start, long end) {
            if (RESTORING.compareAndSet(false, true)) {
                event("restore");
            }
        }

        @Override
        public void onBatchRestored(TopicPartition changelog, String store, long end, long count) {
            RESTORED.addAndGet(count);
        }

        @Override
        public void onRestoreEnd(TopicPartition changelog, String store, long total) {
        }
    }

    /** Four write buffers of 64 MiB and two background threads instead of the defaults. */
    public static final class LargerBuffers implements RocksDBConfigSetter {
        @Override
        public void setConfig(String store, Options options, Map<String, Object> settings) {
            options.setWriteBufferSize(64L << 20);
            options.setMaxWriteBufferNumber(4);
            options.setIncreaseParallelism(2);
        }

        @Override
        public void close(String store, Options options) {
        }
    }
}
