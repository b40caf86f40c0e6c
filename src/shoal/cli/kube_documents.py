"""YAML of `shoal submit`: documents in, objects out, and a sentence for everything that is no object of ours. Pure."""

from collections.abc import Sequence
from typing import Any

import yaml

from shoal.api.validation import problems
from shoal.core.errors import BadInput

Json = dict[str, Any]
MAX_BYTES = 1024 * 1024
"""More than the API server takes."""
MAX_PARTS = 100_000
MAX_DEPTH = 100


class _Loader(yaml.SafeLoader):
    """Kubernetes reads YAML as JSON, which has no dates: what looks like one is text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_documents(name: str, data: bytes, kinds: Sequence[str]) -> list[Json]:
    """Raises `BadInput` with the file, the document and what is wrong with it; checks all before it gives any."""
    if len(data) > MAX_BYTES:
        raise BadInput(f"{name}: {len(data):,} bytes, an object has at most {MAX_BYTES:,}")
    try:
        found = [document for document in yaml.load_all(data, Loader=_Loader) if document is not None]
    except (yaml.YAMLError, UnicodeError, ValueError, RecursionError) as exc:
        raise BadInput(f"{name}: it is not YAML: {' '.join(str(exc).split())[:500]}") from exc
    for number, document in enumerate(found, start=1):
        _check(f"{name}, document {number}" if len(found) > 1 else name, document, kinds)
    return found


def _check(where: str, document: object, kinds: Sequence[str]) -> None:
    _bound(where, document)
    if not isinstance(document, dict):
        raise BadInput(f"{where}: wanted an object with apiVersion, kind and metadata, got {type(document).__name__}")
    if document.get("kind") not in kinds:
        raise BadInput(f"{where}: kind is one of {', '.join(kinds)}, got {document.get('kind')!r}")
    metadata = document.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        raise BadInput(f"{where}: metadata.name is missing")
    found = problems(document)
    if found:
        lines = "\n".join(f"  {each.field}: {each.message}" for each in found[:20])
        raise BadInput(f"{where}: {document['kind']} {metadata['name']} is not valid:\n{lines}")


def _bound(where: str, document: object) -> None:
    """Aliases can make a few lines of YAML into more than fits anywhere: count before anybody writes it out."""
    left = MAX_PARTS
    stack: list[tuple[object, int]] = [(document, 0)]
    while stack:
        value, depth = stack.pop()
        left -= 1
        if left < 0 or depth > MAX_DEPTH:
            raise BadInput(f"{where}: it is larger or deeper than any object may be")
        if isinstance(value, dict):
            stack += [(part, depth + 1) for pair in value.items() for part in pair]
        elif isinstance(value, list):
            stack += [(part, depth + 1) for part in value]
