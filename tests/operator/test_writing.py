"""What is worth a write: a status that is there already is not, and who starts can be told of later."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from shoal.core.pods import PodPhase
from shoal.operator.writing import counts_starts_only, differs, tells_of_new_pods, tells_of_starts_only

STARTS = (PodPhase.PENDING, PodPhase.RUNNING)
Pods = dict[str, str]
PODS = st.dictionaries(st.sampled_from("abcde"), st.sampled_from([*map(str, PodPhase), "Deleted"]))


def a_status(pods: Pods, **more: Any) -> dict[str, Any]:
    conditions = [{"type": kind, "status": "True", "reason": "So"} for kind in ("Accepted", "Admitted")]
    return {"conditions": conditions, "pods": [{"name": each, "phase": pods[each]} for each in sorted(pods)], **more}


def ended(pods: Pods) -> Pods:
    return {name: phase for name, phase in pods.items() if phase not in STARTS}


@given(before=PODS, after=PODS)
def test_only_who_starts_can_wait(before: Pods, after: Pods) -> None:
    there, written = a_status(before), a_status(after)
    assert tells_of_starts_only(written, there) == (ended(before) == ended(after))
    assert differs(written, there) == (before != after)


@given(before=PODS, after=PODS)
def test_a_verdict_never_waits_for_who_starts(before: Pods, after: Pods) -> None:
    assert not tells_of_starts_only(a_status(after, observedGeneration=2), a_status(before, observedGeneration=1))
    assert not tells_of_starts_only(a_status(after), None)


@given(before=PODS, after=PODS)
def test_a_pod_is_new_until_it_was_named_with_its_uid(before: Pods, after: Pods) -> None:
    there, written = a_status(before), a_status(after)
    assert tells_of_new_pods(written, there) == bool(after.keys() - before.keys())
    assert tells_of_new_pods(written, None) == bool(after)
    uids = {**written, "pods": [{**pod, "uid": "u"} for pod in written["pods"]]}
    assert tells_of_new_pods(uids, written) == bool(after)


@given(PODS, st.randoms())
def test_the_order_in_which_the_server_keeps_conditions_is_no_difference(pods: Pods, rng: Any) -> None:
    there = a_status(pods)
    rng.shuffle(there["conditions"])
    assert not differs(a_status(pods), there)


def a_jobs_status(running: int, uids: int, *, ready: str = "False", state: str = "live") -> dict[str, Any]:
    members = [{"name": f"m-{n}", "state": state, **({"uid": f"u-{n}"} if n < uids else {})} for n in range(4)]
    ready_ = {"type": "Ready", "status": ready, "reason": "MembersMissing", "message": f"{running} of 4 members run"}
    roles = [{"role": "worker", "asked": 4, "pending": 4 - running, "running": running}]
    return {"conditions": [ready_], "roles": roles, "members": members, "replicas": uids}


@given(*(st.integers(0, 4) for _ in range(4)))
def test_how_many_run_can_wait_and_whatever_else_a_job_says_cannot(a: int, b: int, c: int, d: int) -> None:
    there = a_jobs_status(a, b)
    assert counts_starts_only(a_jobs_status(c, d), there)
    assert counts_starts_only(a_jobs_status(c, d), {**there, "training": {"phase": "running"}})
    assert not counts_starts_only(a_jobs_status(c, d, ready="True"), there)
    assert not counts_starts_only(a_jobs_status(c, d, state="failed"), there)
    assert not counts_starts_only({**a_jobs_status(c, d), "grant": {"generation": 2}}, there)
    assert not counts_starts_only(a_jobs_status(c, d), None)
