"""How fast `shoal operator` makes Pods, what it costs, and how soon it acts: many jobs on simulated hosts.

The benchmark itself is `_operating.py`. This file has the name of a module of the standard library, and lies where
scripts of this folder look first: whoever imports `operator` from here is handed the standard library's.
"""

import sys

if __name__ == "__main__":
    from _operating import main

    main()
else:
    here, sys.path = sys.path, sys.path[1:]
    del sys.modules[__name__]
    __import__(__name__)
    sys.path = here
