"""RocksDB: the durable engine, its files, its errors, sorted files."""
