"""The CRD files of the Helm chart, made from the models in `shoal.api`.

python tools/crds.py            say whether the files are up to date (exit code 1: they are not)
python tools/crds.py --write    bring them up to date
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from shoal.api.crds import files

ROOT = Path(__file__).parents[1]
CRDS = ROOT / "deploy" / "chart" / "templates" / "crds"


def main(words: Sequence[str]) -> int:
    stale = 0
    for name, wanted in files().items():
        path = CRDS / name
        if path.is_file() and path.read_text(encoding="utf-8") == wanted:
            continue
        if "--write" in words:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted, encoding="utf-8")
            sys.stdout.write(f"{path.relative_to(ROOT)} brought up to date\n")
        else:
            sys.stdout.write(f"{path.relative_to(ROOT)} is out of date: python tools/crds.py --write\n")
            stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
