"""The simulated log: data of the world (`SimLog`), the log port (`SimLogClient`) and a consumer of one process."""

from simulator.log.client import SimLogClient as SimLogClient
from simulator.log.cluster import SimLog as SimLog
