"""The command line without its script: `python -m standfast`, and as a file, which spark-submit needs.

    spark-submit --master yarn .../standfast/__main__.py pipeline --log kafka://host:9092 --state-dir s3://... --out ...

Rules of this file: no logic. No module beside it may have the name of one of Python's own, since Python puts the folder
of a script first on its path.
"""

from __future__ import annotations

import sys

from standfast.ops.command.command_line import main

if __name__ == "__main__":
    sys.exit(main())
