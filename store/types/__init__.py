"""The four store types, each a codec over the rows of one store."""
