"""The rules between fields: each one twice, for the API server and for us.

What a type or a bound can say stands at its field. A `Rule` says the rest: `cel` is what the API server runs at apply
time, `holds` is the same in Python, so that `shoal submit` and the tests need no server. A test gives thousands of
objects to both and wants one verdict.

A rule hangs on a place of the schema (`at`; `[]` is "each item") and sees what is written there: `self` in CEL, a
dict in Python. A *transition* rule sees the old value as well, and is asked only when an object is changed.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shoal.api.elasticjob import STRATEGIES, Strategy
from shoal.api.quantities import MEBIBYTE, parse_quantity

Written = Mapping[str, Any]
MAX_JOB_NAME = 40
JOB_NAME = "^[a-z]([-a-z0-9]*[a-z0-9])?$"

ROLES = (("worker", "worker"), ("parameterServer", "ps"), ("chief", "chief"), ("evaluator", "evaluator"))
"""Where each role stands: under its own name, and in `replicaSpecs`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    at: str
    """Where it hangs: `spec.worker`, `spec.migratePods[].resource`; empty for the whole object."""
    field: str
    """What it is about, below `at`; empty when it is about all of it."""
    cel: str
    message: str
    holds: Callable[..., bool]
    """`holds(self)`, or `holds(self, old)` when it is about a change."""
    transition: bool = False


# ElasticJob ------------------------------------------------------------------------------------------------


def elastic_job_rules() -> tuple[Rule, ...]:
    return (*_job_names(), *_roles(), *_spec(), *_immutables())


def _job_names() -> Iterator[Rule]:
    yield Rule(
        at="",
        field="metadata.name",
        cel=f"size(self.metadata.name) <= {MAX_JOB_NAME}",
        message=f"a job's name has at most {MAX_JOB_NAME} characters: its Pods and Services are named after it",
        holds=lambda job: len(job["metadata"].get("name", "")) <= MAX_JOB_NAME,
    )
    yield Rule(
        at="",
        field="metadata.name",
        cel=f"self.metadata.name.matches('{JOB_NAME}')",
        message="a job's name begins with a letter and has only small letters, digits and '-': its Service is named so",
        holds=lambda job: _is_job_name(job["metadata"].get("name", "")),
    )


def _is_job_name(name: str) -> bool:
    small = set("abcdefghijklmnopqrstuvwxyz")
    return (
        name != ""
        and name[0] in small
        and name[-1] in small | set("0123456789")
        and set(name) <= small | set("-0123456789")
    )


def _roles() -> Iterator[Rule]:
    for own, mapped in ROLES:
        for at in (f"spec.{own}", f"spec.replicaSpecs.{mapped}"):
            yield from _role(at, is_own=at == f"spec.{own}")
            yield _memory(f"{at}.resource")
            yield _command(f"{at}.template.spec")
            if own == "chief":
                yield Rule(
                    at=at,
                    field="replicas",
                    cel="!has(self.replicas) || self.replicas <= 1",
                    message="there is at most one chief",
                    holds=lambda role: role.get("replicas", 0) <= 1,
                )
    yield Rule(
        at="spec.worker",
        field="replicas",
        cel="!has(self.replicas) || self.replicas > 0 || (has(self.min) && self.min == 0)",
        message="replicas 0 would leave no worker: set spec.suspend to true to stop the job for a while, "
        "or worker.min to 0 if others train",
        holds=lambda role: role.get("replicas", 1) > 0 or role.get("min") == 0,
    )


def _role(at: str, *, is_own: bool) -> Iterator[Rule]:
    yield Rule(
        at=at,
        field="min",
        cel="!has(self.min) || !has(self.max) || self.min <= self.max",
        message="min must not exceed max",
        holds=lambda role: not {"min", "max"} <= role.keys() or role["min"] <= role["max"],
    )
    yield Rule(
        at=at,
        field="replicas",
        cel="!has(self.replicas) || !has(self.max) || self.replicas <= self.max",
        message="replicas must not exceed max: raise max as well",
        holds=lambda role: not {"replicas", "max"} <= role.keys() or role["replicas"] <= role["max"],
    )
    silent = "" if is_own else "self.replicas == 0 || "  # in replicaSpecs 0 is "not said"
    yield Rule(
        at=at,
        field="replicas",
        cel=f"!has(self.replicas) || !has(self.min) || {silent}self.replicas >= self.min",
        message="replicas must not be below min: lower min as well",
        holds=lambda role: (
            not {"replicas", "min"} <= role.keys()
            or (not is_own and role["replicas"] == 0)
            or role["replicas"] >= role["min"]
        ),
    )


def _memory(at: str, *, is_map: bool = False) -> Rule:
    """Everywhere but in a JobResource, where bare numbers are MiB. `is_map`: of a Kubernetes resource list."""
    there, memory = ("('memory' in self)", "self['memory']") if is_map else ("has(self.memory)", "self.memory")
    return Rule(
        at=at,
        field="" if is_map else "memory",
        cel=f"!{there} || quantity(string({memory})).compareTo(quantity('1Mi')) >= 0",
        message="memory is in bytes and must be at least 1Mi: write a unit, such as 4096Mi or 4Gi",
        holds=lambda resource: "memory" not in resource or parse_quantity(resource["memory"]) >= MEBIBYTE,
    )


def _command(at: str) -> Rule:
    return Rule(
        at=at,
        field="containers",
        cel="has(self.containers[0].command) && size(self.containers[0].command) > 0",
        message="the first container needs a command: its processes are started by Shoal's agent, which cannot see "
        "the image's entrypoint. Copy the image's ENTRYPOINT and CMD into command",
        holds=lambda spec: bool(spec["containers"][0].get("command")),
    )


def _spec() -> Iterator[Rule]:
    for own, mapped in ROLES:
        yield _one_template(own, mapped)
    yield _memory("spec.resourceLimits")
    strategy = "!has(self.distributionStrategy) || !(self.distributionStrategy in"
    servers = "(has(self.parameterServer) || self.?replicaSpecs.?ps.hasValue())"
    yield Rule(
        at="spec",
        field="distributionStrategy",
        cel=f"{strategy} {_spellings(Strategy.PARAMETER_SERVER)}) || {servers}",
        message="this strategy needs parameter servers: add spec.parameterServer with a template",
        holds=lambda spec: _strategy(spec) is not Strategy.PARAMETER_SERVER or _has_servers(spec),
    )
    yield Rule(
        at="spec",
        field="distributionStrategy",
        cel=f"{strategy} {_spellings(Strategy.ALLREDUCE)}) || !{servers}",
        message="this strategy has no parameter servers: remove them, or use parameter_server",
        holds=lambda spec: _strategy(spec) is not Strategy.ALLREDUCE or not _has_servers(spec),
    )
    yield Rule(
        at="spec",
        field="tfConfig",
        cel=f"!has(self.tfConfig) || !self.tfConfig || {servers}",
        message="TF_CONFIG is for scripts that train with parameter servers: add spec.parameterServer with a template",
        holds=lambda spec: not spec.get("tfConfig") or _has_servers(spec),
    )
    yield Rule(
        at="spec",
        field="tfConfig",
        cel="!has(self.tfConfig) || !self.tfConfig || !(has(self.chief) || self.?replicaSpecs.?chief.hasValue()"
        " || has(self.evaluator) || self.?replicaSpecs.?evaluator.hasValue())",
        message="with tfConfig worker 0 is the chief, and nobody tells an evaluator of checkpoints: remove both roles",
        holds=lambda spec: not spec.get("tfConfig") or not ({"chief", "evaluator"} & _mentioned(spec)),
    )
    yield Rule(
        at="spec",
        field="nodeUnit",
        cel="!has(self.nodeUnit) || !has(self.worker) || !has(self.worker.max) || self.worker.max >= self.nodeUnit",
        message="nodeUnit must not exceed worker.max: no count of workers could satisfy both",
        holds=lambda spec: spec.get("nodeUnit", 0) <= _of(spec, "worker").get("max", float("inf")),
    )
    yield Rule(
        at="spec",
        field="worker.replicas",
        cel="!has(self.nodeUnit) || !has(self.worker) || !has(self.worker.replicas)"
        " || self.worker.replicas % self.nodeUnit == 0",
        message="worker.replicas must be a multiple of nodeUnit",
        holds=lambda spec: _of(spec, "worker").get("replicas", 0) % spec.get("nodeUnit", 1) == 0,
    )


def _one_template(own: str, mapped: str) -> Rule:
    """A role that is mentioned has a template, in one place. There must be workers."""
    templates = f"self.?{own}.?template.hasValue() != self.?replicaSpecs.?{mapped}.?template.hasValue()"
    mentioned = f"!has(self.{own}) && !self.?replicaSpecs.?{mapped}.hasValue() || "

    def holds(spec: Written) -> bool:
        ours, theirs = spec.get(own), _of(spec, "replicaSpecs").get(mapped)
        if own != "worker" and ours is None and theirs is None:
            return True
        return ("template" in (ours or {})) != ("template" in (theirs or {}))

    return Rule(
        at="spec",
        field="",
        cel=templates if own == "worker" else mentioned + templates,
        message=f"{own} needs exactly one template, in spec.{own} or in spec.replicaSpecs.{mapped}",
        holds=holds,
    )


def _immutables() -> Iterator[Rule]:
    """What the members of a running job were made of. `oldSelf.suspend`: nothing runs, so anything may change."""
    paths = ["distributionStrategy", "globalBatch", "managedBy", "tfConfig"]
    paths += [f"{own}.template" for own, _ in ROLES]
    paths += [f"replicaSpecs.{mapped}.template" for _, mapped in ROLES]
    for path in paths:
        yield Rule(
            at="spec",
            field="",
            cel=f"(has(oldSelf.suspend) && oldSelf.suspend) || {_unchanged(path)}",
            message=f"{path} cannot change while the job runs: set spec.suspend to true first",
            holds=lambda spec, old, path=path: old.get("suspend", False) or same(_at(spec, path), _at(old, path)),
            transition=True,
        )


def _unchanged(path: str) -> str:
    """CEL for "it is there as it was, or still is not". (Equality of optional values has no bound on its cost.)"""
    new, old = _is_there("self", path), _is_there("oldSelf", path)
    return f"({new} ? {old} && self.{path} == oldSelf.{path} : !{old})"


def _is_there(root: str, path: str) -> str:
    names = path.split(".")
    steps = [f"has({root}.{'.'.join(names[: length + 1])})" for length in range(len(names))]
    return steps[0] if len(steps) == 1 else f"({' && '.join(steps)})"


def _spellings(strategy: Strategy) -> str:
    return "[" + ", ".join(f"'{name}'" for name, meant in STRATEGIES.items() if meant is strategy) + "]"


def _strategy(spec: Written) -> Strategy | None:
    written = spec.get("distributionStrategy")
    return None if written is None else STRATEGIES[written]


def _has_servers(spec: Written) -> bool:
    return "parameterServer" in spec or "ps" in _of(spec, "replicaSpecs")


def _mentioned(spec: Written) -> set[str]:
    """Names of roles, wherever they stand."""
    return {*spec, *_of(spec, "replicaSpecs")}


def _of(written: Written, name: str) -> Written:
    found: Written = written.get(name) or {}
    return found


def _at(written: Any, path: str) -> Any:
    for name in path.split("."):
        written = written.get(name) if isinstance(written, Mapping) else None
    return written


# ScalePlan and JobResource ---------------------------------------------------------------------------------


def scale_plan_rules() -> tuple[Rule, ...]:
    places = [f"spec.replicaResourceSpecs.{mapped}.resource" for _, mapped in ROLES]
    places += [f"spec.{pods}[].resource" for pods in ("createPods", "migratePods")]
    return (*map(_memory, places), _one_chief("spec.replicaResourceSpecs.chief"), _same_job("ownerJob"))


def job_resource_rules() -> tuple[Rule, ...]:
    return (_one_chief("spec.chief"), _same_job("selector"))


def _one_chief(at: str) -> Rule:
    return Rule(
        at=at,
        field="replicas",
        cel="!has(self.replicas) || self.replicas <= 1",
        message="there is at most one chief",
        holds=lambda role: role.get("replicas", 0) <= 1,
    )


def _same_job(field: str) -> Rule:
    return Rule(
        at="spec",
        field="",
        cel=_unchanged(field),
        message=f"{field} cannot change: make another object for another job",
        holds=lambda spec, old: same(spec.get(field), old.get(field)),
        transition=True,
    )


# TrainingJob -----------------------------------------------------------------------------------------------

_GPUS = ("nvidia.com/gpu", "amd.com/gpu", "alpha.kubernetes.io/nvidia-gpu")
_PARTS = ("trainer", "pserver", "master")
_MIN, _MAX = "min__dash__instance", "max__dash__instance"
"""How CEL writes names with a '-'."""
_FIXED = (
    *("image", "passes", "port", "ports_num", "ports_num_for_sparse", "volumes", "VolumeMounts", "envs", "master"),
    "checkpoint",
    *(f"trainer.{name}" for name in ("entrypoint", "workspace", "resources", "envs", "passes")),
    *(f"pserver.{name}" for name in ("entrypoint", "resources", "envs")),
)


def training_job_rules() -> tuple[Rule, ...]:
    return (*_job_names(), *_instances(), *_amounts(), *_fixed_while_it_runs())


def _instances() -> Iterator[Rule]:
    for part in ("trainer", "pserver"):
        yield Rule(
            at=f"spec.{part}",
            field="min-instance",
            cel=f"!has(self.{_MIN}) || !has(self.{_MAX}) || self.{_MIN} <= self.{_MAX}",
            message="min-instance must not exceed max-instance",
            holds=lambda part: (
                not {"min-instance", "max-instance"} <= part.keys() or part["min-instance"] <= part["max-instance"]
            ),
        )
    least = f"(has(self.trainer.{_MIN}) ? self.trainer.{_MIN} : 1)"
    yield Rule(
        at="spec",
        field="fault_tolerant",
        cel="!has(self.fault_tolerant) || self.fault_tolerant"
        f" || !has(self.trainer.{_MAX}) || self.trainer.{_MAX} <= {least}",
        message="max-instance should equal min-instance when fault_tolerant is disabled: a job that grows and shrinks"
        " has to survive the loss of trainers",
        holds=lambda spec: spec.get("fault_tolerant", True) or not _is_elastic(spec["trainer"]),
    )
    yield Rule(
        at="spec.master",
        field="etcd-replicas",
        cel="!has(self.etcd__dash__replicas) || self.etcd__dash__replicas != 2",
        message="etcd has 1 member or 3: two of two are needed as well, so a second one only adds a way to fail",
        holds=lambda master: master.get("etcd-replicas") != 2,
    )


def _is_elastic(trainer: Written) -> bool:
    least: int = trainer.get("min-instance", 1)
    return bool(trainer.get("max-instance", least) > least)


def _amounts() -> Iterator[Rule]:
    """What a container asks for, by the rules that Kubernetes has for it and by ours."""
    for part in _PARTS:
        at = f"spec.{part}.resources"
        for kind in ("requests", "limits"):
            yield _memory(f"{at}.{kind}", is_map=True)
            yield _device_amounts(f"{at}.{kind}")
        for name in ("cpu", "memory"):
            yield _request_below_limit(at, name)
    for part in ("trainer", "pserver"):
        yield _cores_beside_devices(f"spec.{part}.resources")


def _device_amounts(at: str) -> Rule:
    return Rule(
        at=at,
        field="",
        cel=" && ".join(f"(!('{gpu}' in self) || string(self['{gpu}']).matches('^[0-9]{{1,5}}$'))" for gpu in _GPUS),
        message="devices are counted in whole numbers",
        holds=lambda amounts: all(_is_whole(amounts[gpu]) for gpu in _GPUS if gpu in amounts),
    )


def _is_whole(written: int | str) -> bool:
    text = str(written)
    return text.isascii() and text.isdigit() and len(text) <= 5


def _request_below_limit(at: str, name: str) -> Rule:
    limit, request = f"self.limits['{name}']", f"self.requests['{name}']"
    return Rule(
        at=at,
        field="",
        cel=f"!has(self.limits) || !has(self.requests) || !('{name}' in self.limits) || !('{name}' in self.requests)"
        f" || quantity(string({request})).compareTo(quantity(string({limit}))) <= 0",
        message=f"the request for {name} must not exceed its limit",
        holds=lambda both: (
            name not in _of(both, "limits")
            or name not in _of(both, "requests")
            or parse_quantity(both["requests"][name]) <= parse_quantity(both["limits"][name])
        ),
    )


def _cores_beside_devices(at: str) -> Rule:
    """How many cores a device needs at least is the scheduler's setting; none at all is nobody's wish."""

    def some(kind: str, name: str) -> str:
        amount = f"quantity(string(self.{kind}['{name}']))"
        return f"(has(self.{kind}) && '{name}' in self.{kind} && {amount}.compareTo(quantity('0')) > 0)"

    devices = " || ".join(some(kind, gpu) for gpu in _GPUS for kind in ("limits", "requests"))
    return Rule(
        at=at,
        field="",
        cel=f"!({devices}) || {some('requests', 'cpu')} || {some('limits', 'cpu')}",
        message="a job that asks for devices must ask for cpu as well: cores launch the kernels and copy the data",
        holds=lambda both: not any(_has_some(both, gpu) for gpu in _GPUS) or _has_some(both, "cpu"),
    )


def _has_some(both: Written, name: str) -> bool:
    return any(name in _of(both, kind) and parse_quantity(both[kind][name]) > 0 for kind in ("limits", "requests"))


def _fixed_while_it_runs() -> Iterator[Rule]:
    """What the Pods of a running job were made of. `oldSelf.suspend`: nothing runs, so anything may change."""
    for path in _FIXED:
        yield Rule(
            at="spec",
            field="",
            cel=f"(has(oldSelf.suspend) && oldSelf.suspend) || {_unchanged(path)}",
            message=f"{path} cannot change while the job runs: set spec.suspend to true first",
            holds=lambda spec, old, path=path: old.get("suspend", False) or same(_at(spec, path), _at(old, path)),
            transition=True,
        )
    yield Rule(
        at="spec",
        field="",
        cel="(has(oldSelf.suspend) && oldSelf.suspend) || has(self.pserver) == has(oldSelf.pserver)",
        message="pserver cannot come or go while the job runs: set spec.suspend to true first",
        holds=lambda spec, old: old.get("suspend", False) or ("pserver" in spec) == ("pserver" in old),
        transition=True,
    )


def same(left: Any, right: Any) -> bool:
    """Whether two JSON values are equal, however deep: `True` is not `1`, and no nesting overflows a stack."""
    pairs = [(left, right)]
    while pairs:
        one, other = pairs.pop()
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            if one.keys() != other.keys():
                return False
            pairs += [(value, other[name]) for name, value in one.items()]
        elif isinstance(one, list | tuple) and isinstance(other, list | tuple):
            if len(one) != len(other):
                return False
            pairs += zip(one, other, strict=True)
        elif type(one) is not type(other) or one != other:
            return False
    return True
