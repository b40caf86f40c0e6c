"""Objects for tests: each shows only what matters."""

import copy
from pathlib import Path
from typing import Any

import msgspec
import yaml

from shoal.api.elasticjob import API_VERSION, ElasticJob
from shoal.api.jobresource import API_VERSION as EASYDL
from shoal.api.trainingjob import API_VERSION as PADDLE

Written = dict[str, Any]
EXAMPLES = sorted((Path(__file__).parent / "examples").glob("*.yaml"))


def example(name: str) -> Written:
    path = Path(__file__).parent / "examples" / f"{name}.yaml"
    written: Written = yaml.safe_load(path.read_text(encoding="utf-8"))
    return written


def a_template(**container: Any) -> Written:
    return {
        "spec": {"containers": [{"name": "main", "image": "trainer", "command": ["python", "train.py"], **container}]}
    }


def a_job(name: str = "job", /, *, worker: Written | None = None, **spec: Any) -> Written:
    worker = {"template": a_template(), **(worker or {})}
    return {
        "apiVersion": API_VERSION,
        "kind": "ElasticJob",
        "metadata": {"name": name},
        "spec": copy.deepcopy({"worker": worker, **spec}),
    }


def a_plan(**spec: Any) -> Written:
    return {
        "apiVersion": API_VERSION,
        "kind": "ScalePlan",
        "metadata": {"name": "plan"},
        "spec": copy.deepcopy({"ownerJob": "job", **spec}),
    }


def a_job_resource(**spec: Any) -> Written:
    return {
        "apiVersion": EASYDL,
        "kind": "JobResource",
        "metadata": {"name": "resource"},
        "spec": copy.deepcopy({"selector": {"name": "job"}, **spec}),
    }


def a_training_job(name: str = "job", /, *, trainer: Written | None = None, **spec: Any) -> Written:
    trainer = {"entrypoint": "python train.py", **(trainer or {})}
    return {
        "apiVersion": PADDLE,
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": copy.deepcopy({"image": "trainer", "trainer": trainer, **spec}),
    }


def understood(written: Written) -> ElasticJob:
    return msgspec.convert(written, ElasticJob)
