"""Objects that must not be accepted, each with the field it fails on and a word of the reason.

The same table is held against `problems` and against a real API server.
"""

from typing import Any, NamedTuple

from tests.api.builders import a_job, a_job_resource, a_plan, a_template, a_training_job


class Refused(NamedTuple):
    id: str
    written: dict[str, Any]
    field: str
    says: str
    """Part of the message, ours and the server's; empty where the server has its own words."""


def refused() -> list[Refused]:
    template = a_template()
    no_command = a_template()
    del no_command["spec"]["containers"][0]["command"]
    return [
        Refused("a-name-that-is-too-long", a_job("j" * 41), "metadata.name", "at most 40 characters"),
        Refused("a-name-that-begins-with-a-digit", a_job("4ever"), "metadata.name", "begins with a letter"),
        Refused("a-name-with-a-dot", a_job("a.b"), "metadata.name", "begins with a letter"),
        Refused("a-name-in-another-alphabet", a_job("обучение"), "metadata.name", ""),
        Refused("a-name-that-turns-text-round", a_job("a\u202eb"), "metadata.name", ""),
        Refused(
            "no-command",
            a_job(worker={"template": no_command}),
            "spec.worker.template.spec.containers",
            "needs a command",
        ),
        Refused(
            "an-empty-command",
            a_job(worker={"template": a_template(command=[])}),
            "spec.worker.template.spec.containers",
            "needs a command",
        ),
        Refused(
            "no-container",
            a_job(worker={"template": {"spec": {"containers": []}}}),
            "spec.worker.template.spec.containers",
            "",
        ),
        Refused(
            "a-command-that-is-one-string",
            a_job(worker={"template": a_template(command="python train.py")}),
            "spec.worker.template.spec.containers[0].command",
            "",
        ),
        Refused("no-worker", {**a_job(), "spec": {}}, "spec", "worker needs exactly one template"),
        Refused(
            "a-role-without-a-template",
            a_job(evaluator={"replicas": 1}),
            "spec",
            "evaluator needs exactly one template",
        ),
        Refused(
            "two-templates",
            a_job(replicaSpecs={"worker": {"template": template}}),
            "spec",
            "worker needs exactly one template",
        ),
        Refused("min-above-max", a_job(worker={"min": 3, "max": 2}), "spec.worker.min", "must not exceed max"),
        Refused("replicas-above-max", a_job(worker={"replicas": 3, "max": 2}), "spec.worker.replicas", "raise max"),
        Refused("replicas-below-min", a_job(worker={"replicas": 1, "min": 2}), "spec.worker.replicas", "lower min"),
        Refused("no-replicas", a_job(worker={"replicas": 0}), "spec.worker.replicas", "spec.suspend"),
        Refused("negative-replicas", a_job(worker={"replicas": -1}), "spec.worker.replicas", ""),
        Refused("a-million-replicas", a_job(worker={"replicas": 1_000_000}), "spec.worker.replicas", ""),
        Refused("more-replicas-than-integers", a_job(worker={"replicas": 2**70}), "spec.worker.replicas", ""),
        Refused("half-a-replica", a_job(worker={"replicas": 1.5}), "spec.worker.replicas", ""),
        Refused("replicas-in-words", a_job(worker={"replicas": "three"}), "spec.worker.replicas", ""),
        Refused("two-chiefs", a_job(chief={"replicas": 2, "template": template}), "spec.chief.replicas", "one chief"),
        Refused(
            "memory-in-mebibytes-by-mistake",
            a_job(worker={"resource": {"memory": 4096}}),
            "spec.worker.resource.memory",
            "write a unit",
        ),
        Refused(
            "memory-in-thousandths",
            a_job(worker={"resource": {"memory": "512m"}}),
            "spec.worker.resource.memory",
            "write a unit",
        ),
        Refused("negative-cpu", a_job(worker={"resource": {"cpu": "-1"}}), "spec.worker.resource.cpu", ""),
        Refused("a-fraction-of-cpu", a_job(worker={"resource": {"cpu": 0.5}}), "spec.worker.resource.cpu", ""),
        Refused(
            "no-unit-of-kubernetes", a_job(worker={"resource": {"memory": "4GB"}}), "spec.worker.resource.memory", ""
        ),
        Refused("a-line-feed-after-it", a_job(worker={"resource": {"cpu": "1\n"}}), "spec.worker.resource.cpu", ""),
        Refused("half-a-gpu", a_job(worker={"resource": {"gpu": "500m"}}), "spec.worker.resource.gpu", ""),
        Refused(
            "limits-in-mebibytes-by-mistake",
            a_job(resourceLimits={"memory": "8192"}),
            "spec.resourceLimits.memory",
            "write a unit",
        ),
        Refused("an-unknown-strategy", a_job(distributionStrategy="horovod"), "spec.distributionStrategy", ""),
        Refused(
            "servers-missing",
            a_job(distributionStrategy="parameter_server"),
            "spec.distributionStrategy",
            "needs parameter servers",
        ),
        Refused(
            "servers-too-many",
            a_job(distributionStrategy="ring-allreduce", parameterServer={"template": template}),
            "spec.distributionStrategy",
            "no parameter servers",
        ),
        Refused("tf-config-without-servers", a_job(tfConfig=True), "spec.tfConfig", "parameter servers"),
        Refused(
            "tf-config-with-an-evaluator",
            a_job(tfConfig=True, parameterServer={"template": template}, evaluator={"template": template}),
            "spec.tfConfig",
            "worker 0 is the chief",
        ),
        Refused(
            "tf-config-with-a-chief",
            a_job(tfConfig=True, replicaSpecs={"ps": {"template": template}, "chief": {"template": template}}),
            "spec.tfConfig",
            "worker 0 is the chief",
        ),
        Refused("an-unknown-mode", a_job(optimizeMode="mannual"), "spec.optimizeMode", ""),
        Refused("an-unknown-priority", a_job(priority="Urgent"), "spec.priority", ""),
        Refused("a-window-in-words", a_job(freezingWindow="an hour"), "spec.freezingWindow", ""),
        Refused("a-window-of-nothing", a_job(freezingWindow=""), "spec.freezingWindow", ""),
        Refused("a-unit-above-max", a_job(worker={"max": 2}, nodeUnit=3), "spec.nodeUnit", "worker.max"),
        Refused("no-multiple", a_job(worker={"replicas": 3}, nodeUnit=2), "spec.worker.replicas", "multiple"),
        Refused(
            "checkpoints-all-the-time",
            a_job(checkpoint={"path": "/c", "everySeconds": 0}),
            "spec.checkpoint.everySeconds",
            "",
        ),
        Refused("no-checkpoint-kept", a_job(checkpoint={"path": "/c", "keep": 0}), "spec.checkpoint.keep", ""),
        Refused("no-batch", a_job(globalBatch=0), "spec.globalBatch", ""),
        Refused("a-field-nobody-knows", a_job(workers=3), "spec.workers", ""),
        Refused("a-typing-error-inside", a_job(worker={"replica": 3}), "spec.worker.replica", ""),
        Refused("no-spec", {key: value for key, value in a_job().items() if key != "spec"}, "spec", ""),
        Refused("a-spec-that-is-a-list", {**a_job(), "spec": []}, "spec", ""),
        Refused("a-huge-string", a_job(brainService="b" * 100_000), "spec.brainService", ""),
        Refused(
            "a-huge-list",
            a_plan(psHosts=[f"host-{number}" for number in range(5_000)]),
            "spec.psHosts",
            "",
        ),
        Refused(
            "plan-memory-without-a-unit",
            a_plan(replicaResourceSpecs={"ps": {"resource": {"memory": 256}}}),
            "spec.replicaResourceSpecs.ps.resource.memory",
            "write a unit",
        ),
        Refused(
            "migration-without-a-unit",
            a_plan(migratePods=[{"name": "job-ps-0", "resource": {"memory": "512"}}]),
            "spec.migratePods[0].resource.memory",
            "write a unit",
        ),
        Refused("a-pod-without-a-name", a_plan(removePods=[{"id": 3}]), "spec.removePods[0].name", ""),
        Refused(
            "a-pod-named-twice",
            a_plan(removePods=[{"name": "job-worker-1"}, {"name": "job-worker-1"}]),
            "spec.removePods[1]",
            "",
        ),
        Refused(
            "a-pod-named-with-a-terminal's-words",
            a_plan(removePods=[{"name": "\x1b[31mred"}]),
            "spec.removePods[0].name",
            "",
        ),
        Refused(
            "a-role-nobody-knows",
            a_plan(replicaResourceSpecs={"trainer": {"replicas": 1}}),
            "spec.replicaResourceSpecs.trainer",
            "",
        ),
        Refused("a-resource-for-no-job", a_job_resource(selector={}), "spec.selector.name", ""),
        Refused("a-negative-resource", a_job_resource(worker={"replicas": -4}), "spec.worker.replicas", ""),
        Refused(
            "an-updation-without-a-resource",
            a_job_resource(resource_updation=[{"name": "job-ps-0"}]),
            "spec.resource_updation[0].resource",
            "",
        ),
        *_training_jobs(),
    ]


def _asking(**resources: Any) -> dict[str, Any]:
    return a_training_job(trainer={"resources": resources})


def _training_jobs() -> list[Refused]:
    few = {"min-instance": 3, "max-instance": 2}
    elastic = {"min-instance": 1, "max-instance": 2}
    trainer = "spec.trainer.resources"
    gpu = {"nvidia.com/gpu": 1}
    return [
        Refused("no-trainer", a_training_job(pserver={}) | {"spec": {}}, "spec.trainer", ""),
        Refused("a-long-name-of-a-training-job", a_training_job("t" * 41), "metadata.name", "at most 40 characters"),
        Refused(
            "more-trainers-at-least-than-at-most",
            a_training_job(trainer=few),
            "spec.trainer.min-instance",
            "must not exceed max-instance",
        ),
        Refused(
            "more-servers-at-least-than-at-most",
            a_training_job(pserver=few),
            "spec.pserver.min-instance",
            "must not exceed max-instance",
        ),
        Refused("no-trainer-at-least", a_training_job(trainer={"min-instance": 0}), "spec.trainer.min-instance", ""),
        Refused(
            "elastic-without-fault-tolerance",
            a_training_job(trainer=elastic, fault_tolerant=False),
            "spec.fault_tolerant",
            "max-instance should equal min-instance when fault_tolerant is disabled",
        ),
        Refused(
            "elastic-from-one-without-fault-tolerance",
            a_training_job(trainer={"max-instance": 2}, fault_tolerant=False),
            "spec.fault_tolerant",
            "max-instance should equal min-instance",
        ),
        Refused("devices-without-cores", _asking(limits=gpu), trainer, "must ask for cpu"),
        Refused("devices-with-no-core-at-all", _asking(limits=gpu, requests={"cpu": 0}), trainer, "must ask for cpu"),
        Refused(
            "old-devices-without-cores",
            _asking(limits={"alpha.kubernetes.io/nvidia-gpu": "1"}),
            trainer,
            "must ask for cpu",
        ),
        Refused(
            "half-a-device",
            _asking(limits={"nvidia.com/gpu": "500m", "cpu": 1}),
            f"{trainer}.limits",
            "whole numbers",
        ),
        Refused("a-request-above-its-limit", _asking(requests={"cpu": 2}, limits={"cpu": "1500m"}), trainer, "exceed"),
        Refused("memory-of-a-trainer-without-a-unit", _asking(requests={"memory": 600}), f"{trainer}.requests", "unit"),
        Refused("no-quantity", _asking(requests={"cpu": "a lot"}), f"{trainer}.requests.cpu", ""),
        Refused("a-negative-quantity", _asking(requests={"cpu": -1}), f"{trainer}.requests.cpu", ""),
        Refused(
            "two-members-of-etcd", a_training_job(master={"etcd-replicas": 2}), "spec.master.etcd-replicas", "or 3"
        ),
        Refused(
            "a-workspace-without-a-root", a_training_job(trainer={"workspace": "home"}), "spec.trainer.workspace", ""
        ),
        Refused("a-port-of-nobody", a_training_job(port=70_000), "spec.port", ""),
        Refused("a-class-of-nobody", a_training_job(priority="Highest"), "spec.priority", ""),
        Refused("a-field-of-nobody", a_training_job(trainer={"replicas": 3}), "spec.trainer.replicas", ""),
    ]


def changes() -> list[tuple[str, dict[str, Any], dict[str, Any], str]]:
    """Changes that are refused while the job runs: id, before, after, the field's name."""
    template, other = a_template(), a_template(image="another")
    return [
        ("template", a_job(), a_job(worker={"template": other}), "worker.template"),
        ("command", a_job(), a_job(worker={"template": a_template(command=["sh"])}), "worker.template"),
        (
            "environment",
            a_job(worker={"template": a_template(env=[{"name": "A", "value": "1"}])}),
            a_job(worker={"template": a_template(env=[{"name": "A", "value": "2"}])}),
            "worker.template",
        ),
        ("one-more-role", a_job(), a_job(evaluator={"template": template}), "evaluator.template"),
        ("strategy", a_job(distributionStrategy="allreduce"), a_job(), "distributionStrategy"),
        ("batch", a_job(globalBatch=4), a_job(globalBatch=8), "globalBatch"),
        ("batch-at-last", a_job(), a_job(globalBatch=8), "globalBatch"),
        (
            "tf-config",
            a_job(parameterServer={"template": template}),
            a_job(parameterServer={"template": template}, tfConfig=True),
            "tfConfig",
        ),
        ("manager", a_job(), a_job(managedBy="somebody.else/controller"), "managedBy"),
        ("image", a_training_job(), a_training_job(image="another"), "image"),
        ("entrypoint", a_training_job(), a_training_job(trainer={"entrypoint": "sh"}), "trainer.entrypoint"),
        ("servers", a_training_job(), a_training_job(pserver={}), "pserver"),
        ("master", a_training_job(), a_training_job(master={}), "master"),
        (
            "resources",
            a_training_job(pserver={"resources": {"requests": {"cpu": 1}}}),
            a_training_job(pserver={"resources": {"requests": {"cpu": 2}}}),
            "pserver.resources",
        ),
    ]
