import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.CloseOptions;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.kstream.internals.SessionWindow;
import org.apache.kafka.streams.processor.StateStore;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.query.VersionedKeyQuery;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.TimestampedKeyValueStore;
import org.apache.kafka.streams.state.TimestampedKeyValueStoreWithHeaders;
import org.apache.kafka.streams.state.TimestampedWindowStore;
import org.apache.kafka.streams.state.ValueAndTimestamp;
import org.apache.kafka.streams.state.ValueTimestampHeaders;
import org.apache.kafka.streams.state.VersionedKeyValueStore;
import org.apache.kafka.streams.state.WindowStore;

/**
 * A Kafka Streams application with a store of every kind, which a test drives.
 *
 * <pre>
 * java StoresApp APPLICATION BOOTSTRAP STATE_DIR INPUT_TOPIC PARTITIONS GUARANTEE
 *
 * input      key, and {"store": "win", "value": "v" or null, "start": ms, "end": ms}: one change of one store
 * stdin      dump [KEY...]      every row of every store, and the versions of these keys
 *            asof KEY MS...     the version of a key that was valid at these times
 *            processed          how many records this process has processed
 *            stop               or the end of stdin
 * stdout     JSON, one object a line; {"end": COMMAND} after the answer to each command
 * </pre>
 *
 * Stores kv to ver are written by a processor, counts to visits by the DSL, which counts the input records. No caches.
 */
public final class StoresApp {
    static final Duration HOUR = Duration.ofHours(1);
    static final Duration DAY = Duration.ofDays(1);
    static final ObjectMapper JSON = new ObjectMapper();
    static final Serde<String> TEXT = Serdes.String();
    static final AtomicLong PROCESSED = new AtomicLong();

    public static void main(String[] args) throws Exception {
        KafkaStreams streams = new KafkaStreams(topology(args[3]), settings(args));
        streams.setStateListener((now, before) -> print(Map.of("state", now.toString())));
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.start();
        Rows rows = new Rows(streams, Integer.parseInt(args[4]));
        try (BufferedReader stdin = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            for (String line = stdin.readLine(); line != null && !line.equals("stop"); line = stdin.readLine()) {
                List<String> words = List.of(line.split(" "));
                answer(streams, rows, words.get(0), words.subList(1, words.size()));
                print(Map.of("end", words.get(0)));
            }
        }
        boolean closed = streams.close(CloseOptions
            .groupMembershipOperation(CloseOptions.GroupMembershipOperation.LEAVE_GROUP)
            .withTimeout(Duration.ofSeconds(30)));
        print(Map.of("closed", closed));
    }

    static void answer(KafkaStreams streams, Rows rows, String command, List<String> words) {
        switch (command) {
            case "processed" -> print(Map.of("processed", PROCESSED.get()));
            case "dump" -> rows.dump(words);
            case "asof" -> {
                for (String time : words.subList(1, words.size())) {
                    Instant at = Instant.ofEpochMilli(Long.parseLong(time));
                    rows.query("ver", VersionedKeyQuery.<String, String>withKey(words.get(0)).asOf(at),
                        (partition, found) -> rows.version(partition, words.get(0), found, "asof", at.toEpochMilli()));
                }
            }
            default -> throw new IllegalArgumentException(command);
        }
    }

    static Properties settings(String[] args) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, args[0]);
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[1]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, args[2]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, args[5]);
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100);
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
        return settings;
    }

    static Topology topology(String input) {
        StreamsBuilder builder = new StreamsBuilder();
        List<StoreBuilder<? extends StateStore>> stores = List.of(
            Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore("kv"), TEXT, TEXT),
            Stores.timestampedKeyValueStoreBuilder(Stores.persistentTimestampedKeyValueStore("kvts"), TEXT, TEXT),
            Stores.timestampedKeyValueStoreWithHeadersBuilder(
                Stores.persistentTimestampedKeyValueStoreWithHeaders("kvhd"), TEXT, TEXT),
            Stores.windowStoreBuilder(Stores.persistentWindowStore("win", DAY, HOUR, false), TEXT, TEXT),
            Stores.timestampedWindowStoreBuilder(
                Stores.persistentTimestampedWindowStore("wints", DAY, HOUR, false), TEXT, TEXT),
            Stores.windowStoreBuilder(Stores.persistentWindowStore("windup", DAY, HOUR, true), TEXT, TEXT),
            Stores.sessionStoreBuilder(Stores.persistentSessionStore("ses", DAY), TEXT, TEXT),
            Stores.versionedKeyValueStoreBuilder(Stores.persistentVersionedKeyValueStore("ver", DAY), TEXT, TEXT));
        stores.forEach(builder::addStateStore);
        KStream<String, String> stream = builder.stream(input, Consumed.with(TEXT, TEXT));
        stream.process(Writer::new, stores.stream().map(StoreBuilder::name).toArray(String[]::new));
        Serde<Long> number = Serdes.Long();
        stream.groupByKey().count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("counts").withValueSerde(number));
        stream.groupByKey().windowedBy(TimeWindows.ofSizeAndGrace(HOUR, DAY))
            .count(Materialized.<String, Long, WindowStore<Bytes, byte[]>>as("hourly").withValueSerde(number));
        stream.groupByKey().windowedBy(SessionWindows.ofInactivityGapAndGrace(Duration.ofMillis(50), DAY))
            .count(Materialized.<String, Long, SessionStore<Bytes, byte[]>>as("visits").withValueSerde(number));
        return builder.build();
    }

    static synchronized void print(Map<String, ?> fields) {
        try {
            System.out.write((JSON.writeValueAsString(fields) + "\n").getBytes(StandardCharsets.UTF_8));
            System.out.flush();
        } catch (java.io.IOException error) {
            throw new java.io.UncheckedIOException(error);
        }
    }

    /** Fields of a row in the order in which they are printed. */
    static Map<String, Object> row(Object... fields) {
        Map<String, Object> row = new LinkedHashMap<>();
        for (int i = 0; i < fields.length; i += 2) {
            row.put((String) fields[i], fields[i + 1]);
        }
        return row;
    }

    /** Changes one store with each record. */
    static final class Writer implements Processor<String, String, Void, Void> {
        private ProcessorContext<Void, Void> context;

        @Override
        public void init(ProcessorContext<Void, Void> context) {
            this.context = context;
        }

        @Override
        public void process(Record<String, String> record) {
            JsonNode change;
            try {
                change = JSON.readTree(record.value());
            } catch (java.io.IOException error) {
                throw new java.io.UncheckedIOException(error);
            }
            String name = change.get("store").asText();
            String value = change.hasNonNull("value") ? change.get("value").asText() : null;
            write(name, record, value, change.path("start").asLong(), change.path("end").asLong());
            PROCESSED.incrementAndGet();
        }

        private void write(String name, Record<String, String> record, String value, long start, long end) {
            String key = record.key();
            long time = record.timestamp();
            switch (name) {
                case "kv" -> context.<KeyValueStore<String, String>>getStateStore(name).put(key, value);
                case "kvts" -> context.<TimestampedKeyValueStore<String, String>>getStateStore(name)
                    .put(key, ValueAndTimestamp.make(value, time));
                case "kvhd" -> context.<TimestampedKeyValueStoreWithHeaders<String, String>>getStateStore(name)
                    .put(key, ValueTimestampHeaders.make(value, time, record.headers()));
                case "win", "windup" -> context.<WindowStore<String, String>>getStateStore(name).put(key, value, start);
                case "wints" -> context.<TimestampedWindowStore<String, String>>getStateStore(name)
                    .put(key, ValueAndTimestamp.make(value, time), start);
                case "ses" -> context.<SessionStore<String, String>>getStateStore(name)
                    .put(new Windowed<>(key, new SessionWindow(start, end)), value);
                case "ver" -> context.<VersionedKeyValueStore<String, String>>getStateStore(name).put(key, value, time);
                default -> throw new IllegalArgumentException(name);
            }
        }
    }
}
