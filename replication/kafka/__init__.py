"""The log on a Kafka cluster."""
