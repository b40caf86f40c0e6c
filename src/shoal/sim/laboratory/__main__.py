"""`python -m shoal.sim.laboratory DIR`: the pictures of the laboratory. The table is `shoal simulate`'s."""

import sys
from pathlib import Path

from shoal.core.facts import OptimizerSettings
from shoal.sim.laboratory.experiment import JOBS, cases, entries, judged
from shoal.sim.laboratory.pictures import draw_laboratory


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m shoal.sim.laboratory DIR\n")
        return 2
    settings = OptimizerSettings()
    results = {
        name: [judged(case, entry.maker, settings, 0, entry.place) for case in cases(JOBS, 0, settings, entry)]
        for name, entry in entries(settings).items()
        if name != "oracle"
    }
    for path in draw_laboratory(results, Path(arguments[0]), settings):
        sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
