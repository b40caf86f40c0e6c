"""Where the parts of a job may be: from what its user writes for each role to the hosts that are found for it."""

from dataclasses import replace
from typing import Any

import pytest
from tests.operator import builders as elastic
from tests.operator.builders import NOW, SETTINGS
from tests.operator.training import builders as training

from shoal.core.hosts import Amounts, HostSeen, PodUse
from shoal.operator.allowances import Allowance
from shoal.operator.scheduling.facts import JobFacts
from shoal.operator.scheduling.ledger import Ledger, filled
from shoal.operator.scheduling.round import Known, begin, conclude
from shoal.operator.scheduling.sources import facts_of
from shoal.operator.training.facts import training_facts
from shoal.platforms.kubernetes.uses import shape
from shoal.scheduler.actuation import Standing
from shoal.scheduler.decisions import Code
from shoal.scheduler.policies import policy
from shoal.scheduler.rows import Attained
from shoal.scheduler.settings import SchedulerSettings

GPU, CPU = {"pool": "gpu"}, {"pool": "cpu"}
HOSTS = [
    HostSeen(name="cpu0", capacity=Amounts(64_000, 2**38, 0, 110), labels=CPU),
    HostSeen(name="gpu0", capacity=Amounts(16_000, 2**38, 8, 110), labels=GPU),
]
TRAINER, SERVER = {"cpu": "8", "nvidia.com/gpu": "4"}, {"cpu": "8"}


def a_training_job(trainer: dict[str, str] | None, pserver: dict[str, str] | None) -> JobFacts:
    def part(resources: dict[str, str], selector: dict[str, str] | None) -> dict[str, Any]:
        given = {"requests": {"cpu": resources["cpu"]}, "limits": resources}
        return training.elastic(2, 2) | {"resources": given} | ({"node_selector": selector} if selector else {})

    job = training.a_job(trainer=part(TRAINER, trainer), pserver=part(SERVER, pserver))
    facts = training_facts(job, shape, SETTINGS)
    assert facts is not None
    return facts


def an_elastic_job(worker: dict[str, str] | None, ps: dict[str, str] | None) -> JobFacts:
    def role(resources: dict[str, str], selector: dict[str, str] | None) -> dict[str, Any]:
        main = {"name": "main", "image": "i", "command": ["python"], "resources": {"limits": resources}}
        spec = {"containers": [main]} | ({"nodeSelector": selector} if selector else {})
        return {"template": {"spec": spec}, "replicas": 2, "min": 2}

    spec = {"distributionStrategy": "parameter_server", "checkpoint": {"path": "/shared"}}
    job = elastic.a_job(worker=role(TRAINER, worker), parameterServer=role(SERVER, ps), **spec)
    facts = facts_of(job, (), shape, SETTINGS, now=NOW)
    assert facts is not None
    return facts


kinds = pytest.mark.parametrize("made", [a_training_job, an_elastic_job])


def decide(facts: JobFacts, ledger: Ledger | None = None) -> Allowance:
    settings = SchedulerSettings()
    taken_up = begin(Known(hosts=HOSTS, facts=[facts], ledger=ledger or Ledger()), {}, 0.0, settings, now=1_000.0)
    decisions = policy("cfs")(taken_up.snapshot, 1_000.0, settings)
    return conclude(taken_up, decisions, now=1_000.0).holding[facts.key].allowance


@kinds
def test_each_role_has_hosts_that_its_own_selector_allows(made: Any) -> None:
    facts = made(GPU, CPU)
    allowance = decide(facts)
    assert allowance.hosts == {"gpu0": 2}
    assert allowance.fixed_hosts[facts.server_role] == {"cpu0": 2}
    assert decide(made(GPU, GPU)).code == Code.TOO_LARGE


@kinds
def test_the_trainers_selector_is_nobody_elses(made: Any) -> None:
    facts = made(GPU, None)
    allowance = decide(facts)
    assert allowance.hosts == {"gpu0": 2}
    assert {host for there in allowance.fixed_hosts.values() for host in there} == {"cpu0"}


@kinds
def test_a_server_that_lost_its_host_is_looked_for_where_it_may_be(made: Any) -> None:
    facts = made(GPU, CPU)
    roles = [(facts.trainer_role, "gpu0", facts.each)] * 2
    roles += [(part.role, "cpu0", part.each) for part in facts.fixed]
    pods = [
        PodUse(namespace="default", name=f"p-{n}", uid=f"p-{n}", job=facts.uid, role=role, host=host, runs=True,
               amounts=Amounts(*each))
        for n, (role, host, each) in enumerate(roles)
    ]  # fmt: skip
    standing = Standing(target=2, attained=Attained(at=1_000.0), short_since=900.0)
    known = Known(hosts=HOSTS, facts=[replace(facts, standing=standing)], ledger=filled(pods))
    (row,) = begin(known, {}, 0.0, SchedulerSettings(), now=1_000.0).snapshot.jobs
    assert [(part.role, part.count) for part in row.fixed_pending] == [(facts.server_role, 2)]
    assert row.fixed_pending[0].pools == row.servers.pools != row.pools  # type: ignore[union-attr]
    assert decide(known.facts[0], known.ledger).standing.target == 2, "it stays: there is room on cpu0"
