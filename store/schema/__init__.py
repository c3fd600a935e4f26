"""Serdes of a schema registry, over the Kafka client's own serializers."""
