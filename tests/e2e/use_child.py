"""A plain script whose child uses memory and cpu, until a file says stop."""

import subprocess
import sys
import time
from pathlib import Path

CHILD = """
import sys, time
from pathlib import Path
held = bytearray(int(sys.argv[2]))
held[::4096] = b"x" * len(held[::4096])
while not Path(sys.argv[1]).exists():
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    time.sleep(0.05)
"""


def main() -> None:
    with subprocess.Popen([sys.executable, "-c", CHILD, sys.argv[1], sys.argv[2]]) as child:
        while not Path(sys.argv[1]).exists():
            time.sleep(0.1)
        child.wait()


if __name__ == "__main__":
    main()
