"""The log on a Kafka cluster, by confluent-kafka."""
