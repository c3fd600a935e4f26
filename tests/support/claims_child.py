"""A process that starts an application of one store and ends at once: the child of tests of claims.

python claims_child.py LOG STATE_DIR APP STORE
"""

from __future__ import annotations

import sys

import standfast as sf

if __name__ == "__main__":
    log, state_dir, app, store = sys.argv[1:]
    stores = [sf.KeyValueStore(store, sf.serde.string, sf.serde.string)]
    with sf.Session(app, log=log, state_dir=state_dir, stores=stores, partitions=1) as session:
        session.assign(active=[0])
        session.wait_ready(30)
