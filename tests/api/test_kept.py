"""Whether what a job saves outlives its Pods."""

from typing import Any

import msgspec
import pytest

from shoal.api.elasticjob import ElasticJob
from shoal.api.jobspec import normalise
from shoal.api.kept import why_not_kept

CLAIM = {"persistentVolumeClaim": {"claimName": "models"}}


def a_template(mounts: dict[str, str], **volumes: dict[str, Any]) -> dict[str, Any]:
    """`mounts`: the volume at each path."""
    container = {"name": "main", "image": "i", "command": ["python", "train.py"]}
    mounted = [{"name": name, "mountPath": path} for path, name in mounts.items()]
    spec = {"containers": [{**container, "volumeMounts": mounted}, {"name": "side", "image": "i"}]}
    return {"spec": {**spec, "volumes": [{"name": name, **kind} for name, kind in volumes.items()]}}


KEPT = a_template({"/ckpt": "v"}, v=CLAIM)


def why(path: str | None, **templates: dict[str, Any]) -> str:
    """Of a job with these templates; those of worker and servers are kept unless given."""
    roles = {name: {"template": template} for name, template in {"worker": KEPT, "ps": KEPT, **templates}.items()}
    written = {
        "apiVersion": "elastic.iml.github.io/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": "j", "uid": "u"},
        "spec": {"replicaSpecs": roles, **({} if path is None else {"checkpoint": {"path": path}})},
    }
    return why_not_kept(normalise(msgspec.convert(written, ElasticJob)))


@pytest.mark.parametrize(
    "kind",
    [
        CLAIM,
        {"hostPath": {"path": "/models"}},
        {"nfs": {"server": "s", "path": "/"}},
        {"csi": {"driver": "nfs.csi.k8s.io"}},
        {"cephfs": {"monitors": []}, "emptyDir": None},
    ],
    ids=lambda kind: next(iter(kind)),
)
def test_volumes_that_outlive_their_pods_keep_what_is_saved(kind: dict[str, Any]) -> None:
    template = a_template({"/ckpt": "v"}, v=kind)
    assert why("/ckpt", worker=template, ps=template) == ""


@pytest.mark.parametrize("kind", ["emptyDir", "ephemeral", "configMap", "secret", "projected", "downwardAPI", "image"])
def test_volumes_that_end_with_their_pods_do_not(kind: str) -> None:
    said = why("/ckpt", worker=a_template({"/ckpt": "v"}, v={kind: {}}))
    assert said.startswith(f"checkpoint.path /ckpt is on the volume v ({kind}) of its worker Pods")


@pytest.mark.parametrize(
    ("mounted", "path", "is_kept"),
    [
        ("/ckpt", "/ckpt", True),
        ("/ckpt/", "/ckpt/a/b", True),
        ("/ckpt", "/ckpt//a/", True),
        ("/", "/anything", True),
        ("/ckpt", "/ckpt2", False),
        ("/ckpt/a", "/ckpt", False),
        ("/ckpt", "/ckpt/../tmp", False),
    ],
)
def test_a_path_is_on_the_volume_that_is_mounted_at_it_or_above_it(mounted: str, path: str, is_kept: bool) -> None:
    template = a_template({mounted: "v"}, v=CLAIM)
    said = why(path, worker=template, ps=template)
    assert said == "" if is_kept else "is on no volume of its ps Pods" in said


def test_of_two_volumes_the_nearer_one_counts() -> None:
    volumes = {"kept": CLAIM, "scratch": {"emptyDir": {}}}
    below = a_template({"/ckpt": "kept", "/ckpt/tmp": "scratch"}, **volumes)
    assert why("/ckpt/models", worker=below, ps=below) == ""
    assert "scratch (emptyDir)" in why("/ckpt/tmp/models", worker=below, ps=below)


@pytest.mark.parametrize("role", ["ps", "worker", "chief"])
def test_whoever_saves_or_restores_must_have_it(role: str) -> None:
    assert f"is on no volume of its {role} Pods" in why("/ckpt", **{role: a_template({})})


def test_an_evaluator_need_not_keep_anything() -> None:
    assert why("/ckpt", evaluator=a_template({})) == ""


@pytest.mark.parametrize("volumes", [{}, {"v": {}}], ids=["a-name-that-is-not-there", "a-volume-that-says-nothing"])
def test_a_mount_without_a_kind_of_volume_keeps_nothing(volumes: dict[str, Any]) -> None:
    assert "the volume v" in why("/ckpt", ps=a_template({"/ckpt": "v"}, **volumes))


def test_what_is_on_no_volume_at_all_but_elsewhere_is_kept() -> None:
    assert why("gs://bucket/models", worker=a_template({}), ps=a_template({})) == ""
    assert why(None, worker=a_template({}), ps=a_template({})) == ""
