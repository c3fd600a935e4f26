"""`spark.read.format("standfast")`: stores, changelogs and metadata as tables."""
