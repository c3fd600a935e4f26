"""The command line without its script: `python -m standfast`, and for spark-submit, which wants a file.

    spark-submit --master yarn .../standfast/__main__.py pipeline --log kafka://host:9092 --state-dir s3://... --out ...

Rules of this file: no logic. It stands in a folder whose modules shadow none of Python's own, since whoever runs it as
a file has its folder first on the path.
"""

from __future__ import annotations

import sys

from standfast.ops.cli.command_line import main

if __name__ == "__main__":
    sys.exit(main())
