"""Shoal: training jobs that grow, shrink and lose members without stopping.

The packages and what each may import stand in `docs/architecture.md`; import-linter checks them.
Importing `shoal` itself imports nothing else of ours.
"""

from pathlib import Path

__version__ = "0.1.0"


def commit() -> str:
    """Of which commit this is, where the build has noted it in a file beside this one."""
    try:
        return Path(__file__).with_name("COMMIT").read_text(encoding="ascii").strip() or "unknown"
    except (OSError, ValueError):
        return "unknown"
