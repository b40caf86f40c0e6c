"""The CRD files: up to date, and with nothing in them that Kubernetes or Helm would stumble on."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.api.crds import DEFINITIONS, Definition, crd, files, to_yaml

CRDS = Path(__file__).parents[2] / "deploy" / "chart" / "templates" / "crds"


def schemas(schema: Any) -> Iterator[dict[str, Any]]:
    """A schema, and every schema in it."""
    yield schema
    for each in schema.get("properties", {}).values():
        yield from schemas(each)
    for name in ("items", "additionalProperties"):
        if name in schema:
            yield from schemas(schema[name])


def whole(definition: Definition) -> dict[str, Any]:
    schema: dict[str, Any] = crd(definition)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


@pytest.mark.parametrize("name", files())
def test_the_files_of_the_chart_are_up_to_date(name: str) -> None:
    assert (CRDS / name).read_text(encoding="utf-8") == files()[name], "python tools/crds.py --write"


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda each: each.kind)
def test_the_files_hold_what_was_generated(definition: Definition) -> None:
    assert yaml.safe_load(files()[f"{definition.plural}.yaml"]) == crd(definition)


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda each: each.kind)
def test_every_string_list_and_map_has_a_bound(definition: Definition) -> None:
    for schema in schemas(whole(definition)["properties"]["spec"]):
        match schema.get("type"):
            case "string":
                assert "maxLength" in schema or "enum" in schema, schema
            case "array":
                assert "maxItems" in schema, schema
            case "object" if "additionalProperties" in schema:
                assert "maxProperties" in schema, schema
            case "number":
                raise AssertionError(f"no floats: {schema}")


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda each: each.kind)
def test_every_list_says_how_it_merges(definition: Definition) -> None:
    for section in ("spec", "status"):
        for schema in schemas(whole(definition)["properties"][section]):
            if schema.get("type") == "array" and "x-kubernetes-list-type" in schema:
                keys = schema.get("x-kubernetes-list-map-keys", [])
                assert set(keys) <= set(schema["items"].get("required", [])), schema


@pytest.mark.parametrize("name", files())
def test_helm_finds_nothing_of_its_own_in_them_but_whether_to_install_them(name: str) -> None:
    found = [line for line in files()[name].splitlines() if "{{" in line]
    assert found == ["# {{ if .Values.crds.install }}", "# {{ end }}"]


@pytest.mark.parametrize(
    "value",
    [
        {"a": {"b": [{"c": 1, "d": [True, None]}, [], {}]}},
        {"y": "yes", "no": "null", "- a": "#", "e": "", "f": ": ", "g": "1", "h": "a\nb"},
        [["a", ["b"]], {"a": ["b"]}],
    ],
)
def test_what_is_written_as_yaml_reads_the_same(value: Any) -> None:
    assert yaml.safe_load(to_yaml(value)) == value
