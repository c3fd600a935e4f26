import java.util.List;
import java.util.function.BiConsumer;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.query.MultiVersionedKeyQuery;
import org.apache.kafka.streams.query.Query;
import org.apache.kafka.streams.query.StateQueryRequest;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.QueryableStoreType;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.ReadOnlyKeyValueStore;
import org.apache.kafka.streams.state.ReadOnlySessionStore;
import org.apache.kafka.streams.state.ReadOnlyWindowStore;
import org.apache.kafka.streams.state.ValueAndTimestamp;
import org.apache.kafka.streams.state.ValueTimestampHeaders;
import org.apache.kafka.streams.state.VersionedRecord;
import org.apache.kafka.streams.state.VersionedRecordIterator;

/** Prints what the interactive queries of a StoresApp find, partition by partition. */
final class Rows {
    private final KafkaStreams streams;
    private final int partitions;

    Rows(KafkaStreams streams, int partitions) {
        this.streams = streams;
        this.partitions = partitions;
    }

    /** Every row of every store; of a versioned store only keys can be asked for. */
    void dump(List<String> versionedKeys) {
        for (int partition = 0; partition < partitions; partition++) {
            keyValue("kv", partition, QueryableStoreTypes.<String, String>keyValueStore());
            keyValue("kvts", partition, QueryableStoreTypes.<String, String>timestampedKeyValueStore());
            keyValue("kvhd", partition, QueryableStoreTypes.<String, String>timestampedKeyValueStoreWithHeaders());
            keyValue("counts", partition, QueryableStoreTypes.<String, Long>timestampedKeyValueStore());
            window("win", partition, QueryableStoreTypes.<String, String>windowStore());
            window("windup", partition, QueryableStoreTypes.<String, String>windowStore());
            window("wints", partition, QueryableStoreTypes.<String, String>timestampedWindowStore());
            window("hourly", partition, QueryableStoreTypes.<String, Long>timestampedWindowStore());
            session("ses", partition, QueryableStoreTypes.<String, String>sessionStore());
            session("visits", partition, QueryableStoreTypes.<String, Long>sessionStore());
        }
        for (String key : versionedKeys) {
            query("ver", MultiVersionedKeyQuery.<String, String>withKey(key).withAscendingTimestamps(), (at, found) -> {
                try (VersionedRecordIterator<String> versions = found) {
                    versions.forEachRemaining(version -> version(at, key, version, "kind", "version"));
                }
            });
        }
    }

    /** Runs a query on every partition, and hands over each answer that is not empty. */
    <R> void query(String name, Query<R> query, BiConsumer<Integer, R> use) {
        StateQueryRequest<R> request = StateQueryRequest.inStore(name).withQuery(query);
        streams.query(request).getPartitionResults().forEach((partition, result) -> {
            if (result.isFailure()) {
                throw new IllegalStateException(result.getFailureMessage());
            }
            if (result.getResult() != null) {
                use.accept(partition, result.getResult());
            }
        });
    }

    void version(int partition, String key, VersionedRecord<String> found, String what, Object which) {
        StoresApp.print(StoresApp.row("store", "ver", "partition", partition, "key", key, "value", found.value(),
            "from", found.timestamp(), "to", found.validTo().orElse(-1L), what, which));
    }

    private <V> void keyValue(String name, int partition, QueryableStoreType<ReadOnlyKeyValueStore<String, V>> type) {
        try (KeyValueIterator<String, V> all = store(name, partition, type).all()) {
            all.forEachRemaining(one -> print(name, partition, one.key, -1, -1, one.value));
        }
    }

    private <V> void window(String name, int partition, QueryableStoreType<ReadOnlyWindowStore<String, V>> type) {
        try (KeyValueIterator<Windowed<String>, V> all = store(name, partition, type).all()) {
            all.forEachRemaining(one ->
                print(name, partition, one.key.key(), one.key.window().start(), one.key.window().end(), one.value));
        }
    }

    private <V> void session(String name, int partition, QueryableStoreType<ReadOnlySessionStore<String, V>> type) {
        try (KeyValueIterator<Windowed<String>, V> all = store(name, partition, type).fetch(null, null)) {
            all.forEachRemaining(one ->
                print(name, partition, one.key.key(), one.key.window().start(), one.key.window().end(), one.value));
        }
    }

    private <T> T store(String name, int partition, QueryableStoreType<T> type) {
        return streams.store(StoreQueryParameters.fromNameAndType(name, type).withPartition(partition));
    }

    private static void print(String name, int partition, String key, long start, long end, Object found) {
        Object value = found;
        long timestamp = -1;
        if (found instanceof ValueAndTimestamp<?> stamped) {
            value = stamped.value();
            timestamp = stamped.timestamp();
        } else if (found instanceof ValueTimestampHeaders<?> stamped) {
            value = stamped.value();
            timestamp = stamped.timestamp();
        }
        StoresApp.print(StoresApp.row("store", name, "partition", partition, "key", key, "start", start, "end", end,
            "value", value, "timestamp", timestamp));
    }
}
