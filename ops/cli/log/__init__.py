"""Commands about the log: topics, changelogs, a local broker."""
