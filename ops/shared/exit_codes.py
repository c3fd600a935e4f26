"""Exit codes of the command line.

     0  fine                                69  log or instance unreachable (Unavailable)
     1  a negative answer (not ready,       70  our bug (InternalError, or any error that is not of the tree)
        not found, mismatch)                73  held by another process (Held)
     2  usage (InvalidRequest)              75  fenced: a newer owner has it (Fenced)
     3  inconclusive (verify)               78  configuration (BadConfig)
    65  damaged or lost data               130  interrupted
        (Corruption, StateLost)             71  too little space on disk (DiskFull)
                                            74  whether a write happened is not known (CommitUnknown)

Rules of this file: numbers only; `error_codes.py` says which error has which.
"""

# From 64 on as in BSD's sysexits.h: a supervisor starts an outage (69) again, and not a wrong configuration (78).
OK = 0
NEGATIVE = 1
USAGE = 2
INCONCLUSIVE = 3
DATA = 65
UNAVAILABLE = 69
INTERNAL = 70
DISK = 71
HELD = 73
UNKNOWN = 74
FENCED = 75
CONFIG = 78
INTERRUPTED = 130
