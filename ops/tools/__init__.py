"""Programs that standfast fetches and runs: Java, jars, a Kafka broker."""
