"""The topology of an application: processors, sources, sinks, and error policies."""
