"""The simulated log: data of the world (`SimLog`), and the log port for one process (`SimLogClient`)."""

from simulator.log.client import SimLogClient as SimLogClient
from simulator.log.cluster import SimLog as SimLog
