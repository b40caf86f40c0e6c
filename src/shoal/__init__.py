"""Shoal: training jobs that grow, shrink and lose members without stopping.

The packages and what each may import stand in `docs/architecture.md`; import-linter checks them.
Importing `shoal` itself imports nothing else of ours.
"""

__version__ = "0.1.0"
