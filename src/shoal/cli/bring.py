"""`shoal bring DIR`: copy the Shoal that runs this command, interpreter and all, into an empty directory.

An init container does it, so that a user's Pod has an agent without its image knowing of Shoal.
"""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from shoal.core.errors import BadInput


def main(line: Sequence[str]) -> int:
    if len(line) != 1 or line[0].startswith("-"):
        raise BadInput("shoal bring wants one directory: shoal bring DIR")
    bring(Path(sys.prefix), Path(line[0]))
    return 0


def bring(source: Path, target: Path) -> None:
    """Raises `BadInput` when this Shoal cannot be copied, or not there."""
    command = source / "bin" / "shoal"
    if not command.is_file() or (source / "pyvenv.cfg").exists():
        raise BadInput(
            f"{source} is no bundle: it needs the interpreter of this machine, so it cannot be brought along"
        )
    try:
        target.mkdir(parents=True, exist_ok=True)
        for part in source.iterdir():  # the directory itself may be somebody else's: it stays as it is
            if part.is_dir():
                shutil.copytree(part, target / part.name, symlinks=True, dirs_exist_ok=True)
            else:
                shutil.copy2(part, target / part.name)
    except (OSError, shutil.Error) as exc:
        raise BadInput(f"{source} cannot be copied to {target}: {exc}") from exc
