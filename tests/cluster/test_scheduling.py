"""The cluster's scheduler on a real API server, with Kubernetes' own scheduler and controllers and 100 simulated hosts.

Thirty jobs of both kinds share 800 devices, an online service takes what it needs of them, and the operator is killed
twice meanwhile. Workers have a host's 8 devices each: the cluster holds 100 of them.
"""

import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hack.kube.harness import Cluster, Object
from tests.cluster.operators import Jobs, Process, condition, install, operator
from tests.cluster.training_jobs import TrainingJobs

pytestmark = pytest.mark.timeout(1800)
MakeNamespace = Callable[[Cluster], str]
HOSTS = 100
PATIENCE = float(os.environ.get("SHOAL_TEST_PATIENCE", "300"))
ROUNDS = 2
"""In so many rounds after the one that is under way, an online service has its room, but for the grace of those who
leave."""
DRAIN = 2
"""Seconds that workers have to leave their world."""
ENDING = 1
"""Seconds that Pods have to end."""
LOOKS = 12
"""At a job, in the mean, until those of its workers that have to go are gone: Pods change, times are over."""
SLOWER = 40
"""Times as long as Kubernetes itself takes to remove as many Pods of a Deployment, just before or after: so long may it
take until workers have left, beside their grace and two rounds. 12 at most were seen, on quiet and busy machines."""
BACK_OFF = 10
"""Seconds after which Kubernetes' scheduler tries a Pod again at the latest, once there is room."""
KEPT = 0.05
"""By so much of it, what a job has attained may differ from what its last standing said it would be: somebody who looks
now and then does not see every change of its rate."""
MOVES = 15
"""Of a job in the whole story, in the mean: it starts, gives way to newcomers, to the service and to the service again,
is put back, starts again, and takes more of what becomes free each time."""
EVEN = 0.95
"""Jain's index of jobs that are alike."""
RESOURCES = {"requests": {"cpu": "16"}, "limits": {"nvidia.com/gpu": "8"}}
ROLE = "elastic.iml.github.io/role"
NAME = "elastic.iml.github.io/job-name"
_SERVES = re.compile(r"serves (http://\S+)/metrics")
_ROUNDS = re.compile(r"^shoal_scheduler_cycle_duration_seconds_count\S* (\S+)$", re.MULTILINE)
_LOOKS = re.compile(r"^shoal_reconcile_duration_seconds_count\S* (\S+)$", re.MULTILINE)
MOVE = re.compile(r"(ElasticJob|TrainingJob) (\S+)/(\S+): (admit|grow|shrink|suspend) (\d+) -> (\d+)")


@pytest.fixture(scope="module")
def cluster(kwok: Cluster) -> Iterator[Cluster]:
    install(kwok)
    names = kwok.hosts.add(HOSTS, prefix="crowded", cpu=64, gpus=8)
    yield kwok
    kwok.hosts.remove(names)


class Crowd:
    """The jobs of both kinds in one namespace, and what became of them."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace
        self.elastic, self.training = Jobs(cluster, namespace), TrainingJobs(cluster, namespace)

    def make(self, name: str, least: int, most: int, **spec: Any) -> None:
        """An ElasticJob or a TrainingJob, by the first letter of its name."""
        if name.startswith("e"):
            container = {"name": "main", "image": "localhost/anything:1", "command": ["train"], "resources": RESOURCES}
            template = {"spec": {"containers": [container]}}
            self.elastic.make(name, worker={"template": template, "replicas": most, "min": least, "max": most}, **spec)
        else:
            trainer = {"min-instance": least, "max-instance": most, "resources": RESOURCES}
            self.training.make(name, trainer=trainer, tolerations=[], freezingWindow="2s", **spec)

    def all(self) -> dict[str, Object]:
        found = self.cluster.api.get(self.elastic.jobs)["items"] + self.cluster.api.get(self.training.path)["items"]
        return {each["metadata"]["name"]: each for each in found}

    def standing(self, name: str) -> Object:
        return (self.all()[name].get("status") or {}).get("scheduling") or {}

    def targets(self) -> dict[str, int]:
        told = {name: (job.get("status") or {}).get("scheduling") or {} for name, job in self.all().items()}
        return {name: each.get("target") or 0 for name, each in told.items()}

    def workers(self, items: list[Object] | None = None) -> dict[str, int]:
        """How many run, by job."""
        found: dict[str, int] = {}
        for pod in self.cluster.api.get(self.elastic.pods)["items"] if items is None else items:
            meta = pod["metadata"]
            runs = pod["status"].get("phase") == "Running" and "deletionTimestamp" not in meta
            if runs and meta["labels"].get(ROLE) in ("worker", "trainer"):
                found[meta["labels"][NAME]] = found.get(meta["labels"][NAME], 0) + 1
        return found

    def there(self) -> int:
        """How many workers hold a host, also those that were told to leave it."""
        pods = self.cluster.api.get(self.elastic.pods)["items"]
        is_over = [pod["status"].get("phase") in ("Succeeded", "Failed") for pod in pods]
        hold = [pod for pod, over in zip(pods, is_over, strict=True) if pod["spec"].get("nodeName") and not over]
        return sum(pod["metadata"]["labels"].get(ROLE) in ("worker", "trainer") for pod in hold)

    def until(self, so: Callable[[dict[str, int]], Any], what: str) -> dict[str, int]:
        """Until it is so of the numbers of running workers."""

        def look(items: list[Object]) -> dict[str, int] | None:
            found = self.workers(items)
            return found or {"": 0} if so(found) else None

        found: dict[str, int] = self.cluster.api.wait(self.elastic.pods, look, what=what, timeout=PATIENCE)
        return found

    def until_allowed(self, so: Callable[[dict[str, int]], bool], what: str) -> dict[str, int]:
        """Until it is so of the numbers of workers that jobs may have."""
        until = time.monotonic() + PATIENCE
        while not so(found := self.targets()):
            assert time.monotonic() < until, f"{what}: {found}"
            time.sleep(0.2)
        return found

    def attained(self) -> dict[str, tuple[float, float, float]]:
        """What jobs have attained, when, and how much more they do in a second: nothing while they wait."""
        told = {name: (job.get("status") or {}).get("scheduling") or {} for name, job in self.all().items()}
        return {
            name: (float(each["v"]), datetime.fromisoformat(each["at"]).timestamp(), float(each["rate"]))
            for name, each in told.items()
            if "v" in each
        }

    @contextmanager
    def following(self) -> Iterator[dict[str, list[tuple[float, float, float]]]]:
        """What each job attained from one change of its rate to the next, for as long as the block lasts."""
        found = {name: [standing] for name, standing in self.attained().items()}
        over = threading.Event()

        def follow() -> None:
            while True:
                last = over.wait(0.2)
                for name, standing in self.attained().items():
                    if standing != found.setdefault(name, [standing])[-1]:
                        found[name].append(standing)
                if last:
                    return

        thread = threading.Thread(target=follow)
        thread.start()
        try:
            yield found
        finally:
            over.set()
            thread.join()

    def end(self, name: str) -> None:
        if name.startswith("e"):
            self.elastic.report(name, "succeeded", "all data was trained")
            return
        for pod in self.cluster.api.get(self.elastic.pods)["items"]:
            if pod["metadata"]["labels"].get(NAME) == name and pod["status"].get("phase") == "Running":
                self.training.ends(pod["metadata"]["name"], 0)

    def finish(self, names: list[str]) -> None:
        """End all of them, also workers that begin while others end."""
        until = time.monotonic() + PATIENCE
        while left := [name for name in names if name in self.workers()]:
            assert time.monotonic() < until, f"{left} do not end"
            for name in left:
                self.end(name)
            time.sleep(0.2)

    def says(self, name: str, status: str, reason: str) -> Object:
        path = self.elastic.jobs if name.startswith("e") else self.training.path

        def look(items: list[Object]) -> Object | None:
            job = next((item for item in items if item["metadata"]["name"] == name), {})
            found = condition(job, "Admitted")
            return job if (found.get("status"), found.get("reason")) == (status, reason) else None

        found: Object = self.elastic.wait(path, look, f"{name}: Admitted={status} {reason}")
        return found


class Service:
    """An online service."""

    def __init__(self, cluster: Cluster, namespace: str, **limits: str) -> None:
        self.cluster, self.namespace = cluster, namespace
        self.path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
        pod = {"containers": [{"name": "main", "image": "localhost/anything:1", "resources": {"limits": limits}}]}
        spec = {
            "replicas": 0,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {**pod, "terminationGracePeriodSeconds": 0}},
        }
        cluster.api.create(self.path, {"metadata": {"name": "web"}, "spec": spec})

    def resize(self, count: int) -> None:
        """So many are to run. Until each of them has a host, or Kubernetes has looked for one in vain."""
        self.cluster.api.patch(f"{self.path}/web", {"spec": {"replicas": count}})
        self._until(count, lambda pod: bool(pod["spec"].get("nodeName")) or _is_unschedulable(pod), "were looked at")

    def have_hosts(self) -> int:
        pods = self.cluster.api.get(f"/api/v1/namespaces/{self.namespace}/pods")["items"]
        return sum("deletionTimestamp" not in pod["metadata"] and bool(pod["spec"].get("nodeName")) for pod in pods)

    def seconds_to_remove(self, count: int) -> float:
        """So many Pods run, and are told to go: until Kubernetes has removed them."""
        self.resize(count)
        self.runs(count)
        began = time.monotonic()
        self.resize(0)
        pods = f"/api/v1/namespaces/{self.namespace}/pods"
        self.cluster.api.wait(pods, lambda items: not items, what=f"{count} Pods are removed", timeout=PATIENCE)
        return time.monotonic() - began

    def runs(self, count: int) -> None:
        self._until(count, lambda pod: pod["status"].get("phase") == "Running", "run")

    def _until(self, count: int, so: Callable[[Object], bool], what: str) -> None:
        def look(items: list[Object]) -> bool:
            live = [pod for pod in items if "deletionTimestamp" not in pod["metadata"]]
            return len(live) == count and all(so(pod) for pod in live)

        pods = f"/api/v1/namespaces/{self.namespace}/pods"
        self.cluster.api.wait(pods, look, what=f"{count} Pods of the service {what}", timeout=PATIENCE)


def _is_unschedulable(pod: Object) -> bool:
    told = pod["status"].get("conditions") or []
    return any(each["type"] == "PodScheduled" and each["status"] == "False" for each in told)


def settings(cluster: Cluster, home: str, **more: Any) -> None:
    """The scheduler's ConfigMap, made or changed."""
    path = f"/api/v1/namespaces/{home}/configmaps"
    data = {"data": {"settings": json.dumps({"freezingWindow": "2s", "reserveAfter": "5s", **more})}}
    there = any(each["metadata"]["name"] == "shoal-scheduler" for each in cluster.api.get(path)["items"])
    if there:
        cluster.api.patch(f"{path}/shoal-scheduler", data)
    else:
        cluster.api.create(path, {"metadata": {"name": "shoal-scheduler"}, **data})


def moves(log: Path, namespace: str) -> list[tuple[str, str, int, int]]:
    """What was decided so far for the jobs of a namespace: job, action, before, after. The operator of the crowd looks
    after all namespaces, and other tests' jobs may not be gone yet."""
    return [(m[3], m[4], int(m[5]), int(m[6])) for m in MOVE.finditer(log.read_text()) if m[2] == namespace]


def decided(log: Path, namespace: str) -> dict[str, int]:
    """How many workers each job may have, by the last decision about it."""
    return {name: after for name, _, _, after in moves(log, namespace)}


def shoal(cluster: Cluster, *words: str) -> str:
    command = [sys.executable, "-m", "shoal", *words, f"--kubeconfig={cluster.kubeconfig}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def jain(shares: list[int]) -> float:
    return sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))


def test_thirty_jobs_share_a_hundred_hosts_with_a_service_while_operators_die(
    cluster: Cluster, make_namespace: MakeNamespace, tmp_path: Path
) -> None:
    train, home = Crowd(cluster, make_namespace(cluster)), make_namespace(cluster)
    online = Service(cluster, make_namespace(cluster), **{"nvidia.com/gpu": "8", "cpu": "16"})
    settings(cluster, home, maxWait="30s", priorities=["*"])
    with closing(Operators(cluster, home, tmp_path / "operator.log")) as operators:
        said = _story(train, online, Service(cluster, make_namespace(cluster)), operators)
        made = Counter(name for name, _, _, _ in moves(operators.log, train.namespace))
    said.append(f"{made.total()} moves, of one job {sorted(made.values())}")
    print("\n".join(said))
    assert len(made) == 30
    assert made.total() <= MOVES * len(made), "jobs are moved to and fro"
    assert max(made.values()) <= 1.5 * MOVES, f"one job is moved to and fro: {made.most_common(3)}"


class Operators:
    """One operator after the other, with one log."""

    def __init__(self, cluster: Cluster, home: str, log: Path) -> None:
        self._cluster, self._home, self.log = cluster, home, log
        self._process = self._start()

    def _start(self) -> Process:
        quick = ("--drain", str(DRAIN), "--ending", str(ENDING), "--silence", "3", "--skip-checks")
        lease = ("--lease-seconds", "15", "--renew-seconds", "12", "--retry-seconds", "1")
        self._earlier = len(self.log.read_text()) if self.log.exists() else 0
        return Process(self._cluster.kubeconfig, "all", self.log, "--home", self._home, *quick, *lease)

    def kill(self) -> None:
        """The operator is killed, and another one started."""
        self._process.kill()
        self._process = self._start()

    def rounds(self) -> int:
        """How many the present one has made."""
        return self._count(_ROUNDS)

    def looks(self) -> int:
        """How often it has looked at a job."""
        return self._count(_LOOKS)

    def _count(self, what: re.Pattern[str]) -> int:
        until = time.monotonic() + PATIENCE
        while (found := _SERVES.search(self.log.read_text(), self._earlier)) is None:
            assert time.monotonic() < until, "it does not serve"
            time.sleep(0.05)
        with urllib.request.urlopen(f"{found[1]}/metrics", timeout=30) as answer:
            return int(sum(float(count) for count in what.findall(answer.read().decode())))

    def until(self, so: Callable[[], bool], what: str) -> int:
        """Returns the number of the round after which it was so, or of an earlier one."""
        made, until = self.rounds(), time.monotonic() + PATIENCE
        while not so():
            assert time.monotonic() < until, what
            made = self.rounds()  # before the next look: the round after which it is so comes after it
            time.sleep(0.05)
        return made + 1

    def close(self) -> None:
        assert self._process.end() == 0
        assert "Traceback" not in self.log.read_text(), self.log.read_text()[-6000:]


def _story(train: Crowd, online: Service, plain: Service, operators: Operators) -> list[str]:
    """What happened, in a few lines. The plain service shows what the same costs without us."""
    names = [f"{kind}-{number}" for number in range(10) for kind in ("e", "t")]
    said = [_they_arrive_and_share(train, names), _others_come(train, names)]
    with train.following() as told:
        operators.kill()
        said += _a_service_takes_half(train, online, plain, operators)
    said.append(_nothing_is_forgotten(told))
    said += _a_service_leaves_everybody_the_least(train, online, plain, operators)
    with train.following() as told:
        operators.kill()
        said += _a_service_takes_nearly_all(train, online, plain, operators)
        shares = _they_come_back(train, online)
    said.append(_nothing_is_forgotten(told))
    back = {job for job, action, _, _ in moves(operators.log, train.namespace) if action == "suspend"}
    assert all(len(told[name]) > 2 for name in back), "not seen: how a job ran, waited and ran again"
    said.append(_some_end(train, names, shares))
    return said


def _they_arrive_and_share(train: Crowd, names: list[str]) -> str:
    for name in names:
        train.make(name, 1, 10)
    shares = train.until(lambda run: len(run) == 20 and sum(run.values()) == HOSTS, "20 jobs run 100 workers")
    assert max(shares.values()) <= 10
    even = train.until_allowed(lambda may: jain(list(may.values())) >= EVEN, "20 jobs that are alike share alike")
    return f"20 jobs: {sorted(even.values())}, Jain {jain(list(even.values())):.3f}"


def _others_come(train: Crowd, names: list[str]) -> str:
    """Ten more arrive into a full cluster, and others give way. One counts ten times as much as they do; one counts a
    hundredth, and deserves nothing that others have until it has waited for long."""
    for number in range(10, 14):
        for kind in ("e", "t"):
            train.make(f"{kind}-{number}", 1, 10)
    train.make("e-14", 1, 10, priority="Production")
    train.make("t-14", 1, 10, priority="Experiment")
    train.until(lambda run: len(run) == 30 and sum(run.values()) == HOSTS, "30 jobs run 100 workers")
    train.until(lambda run: run.get("e-14", 0) == 10, "Production has all it asks for")
    shares = train.workers()
    assert shares["t-14"] <= min(shares[name] for name in names) + 1
    return f"30 jobs: {sorted(shares.values())}; Production {shares['e-14']}, Experiment {shares['t-14']}"


def _nothing_is_forgotten(told: dict[str, list[tuple[float, float, float]]]) -> str:
    """Every standing goes on where the one before it said it would be, also that of the operator that came after."""
    later = [pair for standings in told.values() for pair in pairwise(standings)]
    assert len([standings for standings in told.values() if len(standings) > 1]) >= 10, "few rates have changed"
    for (v, at, rate), (v_then, then, _) in later:
        assert v > 0
        assert v_then == pytest.approx(v + rate * (then - at), rel=KEPT)
    off = [abs(v_then / (v + rate * (then - at)) - 1) for (v, at, rate), (v_then, then, _) in later]
    return f"{len(later)} changes of rates while operators changed: attained service is off by at most {max(off):.2%}"


def _a_service_takes_half(train: Crowd, online: Service, plain: Service, operators: Operators) -> list[str]:
    """Jobs shrink and none is put back, for all keep their least."""
    said = _takes(train, online, plain, operators, HOSTS // 2)
    shares = train.until(lambda run: sum(run.values()) == HOSTS // 2, "50 workers run beside the service")
    assert len(shares) == 30
    assert not [move for move in moves(operators.log, train.namespace) if move[1] == "suspend"]
    return said


def _a_service_leaves_everybody_the_least(
    train: Crowd, online: Service, plain: Service, operators: Operators
) -> list[str]:
    said = _takes(train, online, plain, operators, HOSTS - 30)
    train.until(lambda run: run == dict.fromkeys(train.targets(), 1), "30 jobs run at their least")
    assert not [move for move in moves(operators.log, train.namespace) if move[1] == "suspend"]
    return said


def _takes(train: Crowd, online: Service, plain: Service, operators: Operators, count: int) -> list[str]:
    """The service grows. Within two rounds of Kubernetes' having looked for hosts in vain, jobs are told to leave as
    many. They do, after their grace, nearly as soon as Kubernetes can remove Pods: nothing more has to be decided for
    it. Then its Pods have the hosts as soon as Kubernetes tries them again, and nobody is allowed to come back before.
    Rounds come at most once a second."""
    leave = max(1, train.there() - (HOSTS - count))
    before = plain.seconds_to_remove(leave)
    online.resize(count)
    seen = operators.rounds()

    def allowed() -> int:
        return sum(decided(operators.log, train.namespace).values())

    made = operators.until(lambda: allowed() <= HOSTS - count, f"workers are told to leave {count} hosts") - seen
    stay, looks, told = allowed(), operators.looks(), time.monotonic()
    left = operators.until(lambda: train.there() <= HOSTS - count, f"workers have left {count} hosts") - seen
    took, looks = time.monotonic() - told, operators.looks() - looks
    have = operators.until(lambda: online.have_hosts() == count, f"{count} Pods of the service have hosts") - seen
    still = allowed()
    online.runs(count)
    alone = max(before, plain.seconds_to_remove(leave))
    assert took <= DRAIN + ENDING + ROUNDS + SLOWER * alone, (
        f"{took:.1f} s until {leave} left; a Deployment's {alone:.1f} s"
    )
    assert made <= 1 + ROUNDS, f"{made} rounds until there was room for {count} Pods"
    assert looks <= LOOKS * len(train.all()), f"{looks} looks at jobs until workers had left {count} hosts"
    assert have - left <= 2 * BACK_OFF + ROUNDS, f"{have - left} more until {count} Pods of the service had hosts"
    assert still <= HOSTS - count, f"{still} workers were allowed before {count} Pods of the service had hosts"
    seconds = f"{took:.1f} s (those of a Deployment {alone:.1f} s)"
    rounds = f"decided after {made} rounds, left after {left}, {seconds} and {looks} looks at jobs, hosts after {have}"
    return [f"{count} hosts for the service: {rounds}; {stay} workers stay"]


def _a_service_takes_nearly_all(train: Crowd, online: Service, plain: Service, operators: Operators) -> list[str]:
    """Nobody has more than its least: whole jobs go back into the queue."""
    said = _takes(train, online, plain, operators, HOSTS - 10)
    train.until(lambda run: 0 < sum(run.values()) <= 10, "10 workers at most run beside the service")
    back = sorted({move[0] for move in moves(operators.log, train.namespace) if move[1] == "suspend"})
    assert len(back) >= 20
    assert "e-14" not in back
    waiting = [name for name, target in train.targets().items() if target == 0]
    job = train.all()[waiting[0]]
    assert condition(job, "Admitted")["status"] == "False"
    assert job["status"]["scheduling"]["place"] >= 1
    assert waiting[0] in shoal(train.cluster, "queue", f"--namespace={train.namespace}")
    return said


def _they_come_back(train: Crowd, online: Service) -> dict[str, int]:
    """The service shrinks, and all of them come back."""
    online.resize(0)
    return train.until(lambda run: len(run) == 30 and sum(run.values()) == HOSTS, "all 30 are back on 100 hosts")


def _some_end(train: Crowd, names: list[str], shares: dict[str, int]) -> str:
    """When some end the others grow."""
    train.finish(names[:10])
    left = set(shares) - set(names[:10])
    shares = train.until(lambda run: set(run) == left and sum(run.values()) == HOSTS, "others run what ten did")
    return f"20 jobs are left: {sorted(shares.values())}"


def test_jobs_that_can_never_start_say_so_and_hold_up_nobody(
    cluster: Cluster, make_namespace: MakeNamespace, tmp_path: Path
) -> None:
    namespace = make_namespace(cluster)
    crowd = Crowd(cluster, namespace)
    quota = {"metadata": {"name": "team"}, "spec": {"hard": {"requests.nvidia.com/gpu": "16"}}}
    cluster.api.create(f"/api/v1/namespaces/{namespace}/resourcequotas", quota)
    with operator(cluster, namespace, tmp_path) as process:
        for kind in ("e", "t"):
            crowd.make(f"{kind}-greedy", 4, 4)
            job = crowd.says(f"{kind}-greedy", "False", "AboveWholeQuota")
            assert "32 GPUs" in condition(job, "Admitted")["message"]
        crowd.make("e-first", 1, 10)
        crowd.until(lambda run: run.get("e-first") == 2, "it has all of the quota")
        crowd.says("e-first", "True", "Trimmed")
        crowd.make("t-second", 2, 2)
        crowd.says("t-second", "False", "QuotaExceeded")
        _what_would_become_of_another(crowd, tmp_path)
        cluster.api.delete(f"/api/v1/namespaces/{namespace}/resourcequotas/team")
        crowd.until(lambda run: run.get("e-first") == 10 and run.get("t-second") == 2, "the quota is gone")
        for kind in ("e", "t"):
            crowd.make(f"{kind}-huge", HOSTS + 1, HOSTS + 1)
            crowd.says(f"{kind}-huge", "False", "TooLarge")
        assert process.is_alive()


def _what_would_become_of_another(crowd: Crowd, folder: Path) -> None:
    """Two ways to ask, one answer; and nothing is made."""
    before, file = crowd.all().keys(), folder / "another.json"
    file.write_text(json.dumps({**crowd.all()["t-second"], "metadata": {"name": "t-third"}, "status": {}}))
    place = (f"--namespace={crowd.namespace}", f"--home={crowd.namespace}")
    for words in (("whatif", str(file)), ("simulate", str(file), "--cluster=live")):
        found = shoal(crowd.cluster, *words, *place)  # other tests' jobs may be in it, on their way out
        assert f"TrainingJob {crowd.namespace}/t-third would not start" in found
        assert "16 GPUs of 16 GPUs in use, 16 GPUs asked" in found
    assert crowd.all().keys() == before


def test_bad_settings_are_refused_with_an_event_and_the_old_ones_stay(
    cluster: Cluster, make_namespace: MakeNamespace, tmp_path: Path
) -> None:
    namespace = make_namespace(cluster)
    crowd = Crowd(cluster, namespace)
    settings(cluster, namespace, quotas={namespace: {"gpu": 16}})
    with operator(cluster, namespace, tmp_path):
        crowd.make("e-1", 1, 4)
        crowd.until(lambda run: run.get("e-1") == 2, "the quota of the settings holds")
        settings(cluster, namespace, quotas={namespace: {"gpu": 32}}, interval="often")
        events = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
        found = crowd.elastic.wait(
            events, lambda items: [each for each in items if each["reason"] == "SettingsRefused"], "an event"
        )
        assert "'often' is no duration" in found[0]["note"]
        assert crowd.workers() == {"e-1": 2}
        settings(cluster, namespace, quotas={namespace: {"gpu": 32}})
        crowd.until(lambda run: run.get("e-1") == 4, "the new quota holds")
