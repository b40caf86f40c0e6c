"""What our code stands on, by one suite for the fake API server and the real one.

`tests/platforms/kubernetes/test_fake.py` runs it against the fake, `tests/cluster/test_client_contract.py` against
Kubernetes: each gives the fixture `api`. When the two disagree, the fake is wrong.
"""

import asyncio
import random
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from tests.platforms.kubernetes.builders import FISH, QUICK_INFORMER, a_config, a_fish, a_pod, until

from shoal.platforms.kubernetes.cache import by_label, by_owner
from shoal.platforms.kubernetes.client import Client, JsonPatch, Merge, Propagation, Strategic
from shoal.platforms.kubernetes.elector import Elector, ElectorSettings
from shoal.platforms.kubernetes.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    LeaseLost,
    NamespaceEnding,
    NotFound,
    NotServed,
    TooManyRequests,
    Unauthorized,
)
from shoal.platforms.kubernetes.events import Recorder, RecorderSettings, reference
from shoal.platforms.kubernetes.informer import Informer
from shoal.platforms.kubernetes.objects import (
    ACCESS_REVIEWS,
    CONFIG_MAPS,
    EVENTS,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    SECRETS,
    SERVICE_ACCOUNTS,
    AccessReviewSpec,
    Kind,
    Lease,
    LeaseSpec,
    Namespace,
    ObjectMeta,
    OwnerReference,
    ResourceAttributes,
    Secret,
    SelfSubjectAccessReview,
    ServiceAccount,
    TokenRequest,
    TokenRequestSpec,
    micro_time,
)
from shoal.platforms.kubernetes.reads import EventType, WatchEvent
from shoal.platforms.kubernetes.workloads import JOBS


@dataclass(frozen=True, slots=True)
class Api:
    client: Client
    """May do everything."""
    reader: Client
    """May read Pods in the namespace, and nothing else."""
    stranger: Client
    """Has a token that nobody gave it."""
    namespace: str


# Single objects ----------------------------------------------------------------------------------------------------


async def test_what_is_created_can_be_read_and_has_an_identity(api: Api) -> None:
    made = await api.client.create(PODS, a_pod("a", api.namespace, labels={"job": "x"}))
    found = await api.client.get(PODS, "a", namespace=api.namespace)
    assert found.spec == made.spec
    assert found.metadata.uid == made.metadata.uid != ""
    assert found.metadata.resource_version
    assert found.metadata.creation_timestamp is not None
    assert (found.status.phase, found.metadata.labels) == ("Pending", {"job": "x"})


async def test_what_is_not_there_is_not_found(api: Api) -> None:
    with pytest.raises(NotFound, match="gone-fishing"):
        await api.client.get(PODS, "gone-fishing", namespace=api.namespace)
    with pytest.raises(NotFound):
        await api.client.delete(PODS, "gone-fishing", namespace=api.namespace)
    with pytest.raises(NotFound):
        await api.client.patch(PODS, "gone-fishing", Merge({}), namespace=api.namespace)


async def test_a_kind_that_is_not_served_is_told_from_an_object_that_is_not_there(api: Api) -> None:
    birds = Kind(group="sea.shoal.dev", version="v1", kind="Bird", plural="birds", type=dict)
    insects = Kind(group="air.shoal.dev", version="v1", kind="Insect", plural="insects", type=dict)
    for kind in (birds, insects):
        with pytest.raises(NotServed, match=f"{kind.plural}.{kind.group}.*custom resource definition"):
            await api.client.list(kind, namespace=api.namespace)
        with pytest.raises(NotServed):
            await api.client.get(kind, "any", namespace=api.namespace)


async def test_one_name_is_one_object(api: Api) -> None:
    await api.client.create(PODS, a_pod("a", api.namespace))
    with pytest.raises(AlreadyExists, match=f"create Pod {api.namespace}/a"):
        await api.client.create(PODS, a_pod("a", api.namespace))


async def test_a_generated_name_is_new_each_time(api: Api) -> None:
    body = {"metadata": {"generateName": "drawn-", "namespace": api.namespace}}
    names = {(await api.client.create(CONFIG_MAPS, body)).metadata.name for _ in range(3)}
    assert len(names) == 3
    assert all(name.startswith("drawn-") for name in names)


async def test_a_bad_object_is_refused_with_the_field_named(api: Api) -> None:
    with pytest.raises(Invalid) as refused:
        await api.client.create(PODS, {"metadata": {"name": "a", "namespace": api.namespace}, "spec": {}})
    assert "spec.containers" in [cause.field for cause in refused.value.causes]
    with pytest.raises(Invalid) as refused:
        await api.client.create(CONFIG_MAPS, a_config("Not_A_Name", api.namespace))
    assert "metadata.name" in [cause.field for cause in refused.value.causes]


async def test_a_dry_run_changes_nothing(api: Api) -> None:
    await api.client.create(PODS, a_pod("a", api.namespace), dry_run=True)
    await api.client.apply(CONFIG_MAPS, a_config("b", api.namespace, x="1"), manager="m", dry_run=True)
    for kind in (PODS, CONFIG_MAPS):
        with pytest.raises(NotFound):
            await api.client.get(kind, "a" if kind is PODS else "b", namespace=api.namespace)


async def test_a_secret_keeps_its_bytes_and_does_not_show_them(api: Api) -> None:
    secret = Secret(ObjectMeta(name="a", namespace=api.namespace), data={"token": b"\x00\xffdeep"})
    await api.client.create(SECRETS, secret)
    found = await api.client.get(SECRETS, "a", namespace=api.namespace)
    assert found.data == {"token": b"\x00\xffdeep"}
    assert "deep" not in repr(found)


async def test_times_on_a_whole_second_are_taken(api: Api) -> None:
    moment = micro_time(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    spec = LeaseSpec(holder_identity="me", renew_time=moment, acquire_time=moment)
    made = await api.client.create(LEASES, Lease(ObjectMeta(name="a", namespace=api.namespace), spec))
    assert made.spec.renew_time == moment


# Changing ----------------------------------------------------------------------------------------------------------


async def test_replacing_an_old_version_is_a_conflict(api: Api) -> None:
    first = await api.client.create(CONFIG_MAPS, a_config("a", api.namespace, x="1"))
    second = await api.client.replace(CONFIG_MAPS, msgspec.structs.replace(first, data={"x": "2"}))
    assert int(second.metadata.resource_version) > int(first.metadata.resource_version)
    with pytest.raises(Conflict):
        await api.client.replace(CONFIG_MAPS, msgspec.structs.replace(first, data={"x": "3"}))
    assert (await api.client.get(CONFIG_MAPS, "a", namespace=api.namespace)).data == {"x": "2"}


async def test_a_part_of_an_object_cannot_replace_it(api: Api) -> None:
    pod = await api.client.create(PODS, a_pod("a", api.namespace))
    with pytest.raises(TypeError, match="patch or apply"):
        await api.client.replace(PODS, pod)


async def test_a_change_that_changes_nothing_keeps_the_version(api: Api) -> None:
    before = await api.client.create(CONFIG_MAPS, a_config("a", api.namespace, x="1"))
    after = await api.client.patch(CONFIG_MAPS, "a", Merge({"data": {"x": "1"}}), namespace=api.namespace)
    assert after.metadata.resource_version == before.metadata.resource_version


async def test_a_merge_patch_sets_and_removes(api: Api) -> None:
    await api.client.create(CONFIG_MAPS, a_config("a", api.namespace, x="1", y="2"))
    patch = Merge({"data": {"x": None, "z": "3"}, "metadata": {"labels": {"k": "v"}}})
    after = await api.client.patch(CONFIG_MAPS, "a", patch, namespace=api.namespace)
    assert (after.data, after.metadata.labels) == ({"y": "2", "z": "3"}, {"k": "v"})


async def test_a_patch_with_a_version_or_uid_is_conditional(api: Api) -> None:
    first = await api.client.create(CONFIG_MAPS, a_config("a", api.namespace, x="1"))
    version, uid = first.metadata.resource_version, first.metadata.uid
    good = Merge({"metadata": {"resourceVersion": version, "uid": uid}, "data": {"x": "2"}})
    await api.client.patch(CONFIG_MAPS, "a", good, namespace=api.namespace)
    for wrong in ({"resourceVersion": version}, {"uid": "11111111-1111-1111-1111-111111111111"}):
        late = Merge({"metadata": wrong, "data": {"x": "3"}})
        with pytest.raises(Conflict):
            await api.client.patch(CONFIG_MAPS, "a", late, namespace=api.namespace)


async def test_a_json_patch_is_done_when_its_test_holds(api: Api) -> None:
    await api.client.create(CONFIG_MAPS, a_config("a", api.namespace, x="1"))
    operations = [
        {"op": "test", "path": "/data/x", "value": "1"},
        {"op": "replace", "path": "/data/x", "value": "2"},
        {"op": "add", "path": "/data/y", "value": "3"},
    ]
    after = await api.client.patch(CONFIG_MAPS, "a", JsonPatch(operations), namespace=api.namespace)
    assert after.data == {"x": "2", "y": "3"}
    with pytest.raises(Invalid):
        await api.client.patch(CONFIG_MAPS, "a", JsonPatch(operations), namespace=api.namespace)


async def test_a_patch_may_ask_for_the_generation_which_a_status_does_not_change(api: Api) -> None:
    """What a batch Job may run at once is written over the number it was decided on, while its Pods come and go."""
    pod = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "localhost/anything:1"}]}
    meta = {"name": "j", "namespace": api.namespace}
    first = await api.client.create(
        JOBS, {"metadata": meta, "spec": {"parallelism": 1, "suspend": True, "template": {"spec": pod}}}
    )
    told = Merge({"metadata": {"uid": first.metadata.uid}, "status": {"failed": 1}})
    await api.client.patch(JOBS, "j", told, namespace=api.namespace, subresource="status")
    operations = [
        {"op": "test", "path": "/metadata/uid", "value": first.metadata.uid},
        {"op": "test", "path": "/metadata/generation", "value": first.metadata.generation},
        {"op": "add", "path": "/spec/parallelism", "value": 3},
    ]
    after = await api.client.patch(JOBS, "j", JsonPatch(operations), namespace=api.namespace)
    assert (after.spec.parallelism, after.metadata.generation) == (3, (first.metadata.generation or 0) + 1)
    with pytest.raises(Invalid):
        await api.client.patch(JOBS, "j", JsonPatch(operations), namespace=api.namespace)


async def test_a_strategic_patch_finds_a_container_by_its_name(api: Api) -> None:
    await api.client.create(PODS, a_pod("a", api.namespace))
    patch = Strategic({"spec": {"containers": [{"name": "main", "image": "none.invalid/other"}]}})
    after = await api.client.patch(PODS, "a", patch, namespace=api.namespace)
    assert [(c.name, c.image) for c in after.spec.containers] == [("main", "none.invalid/other")]
    await api.client.create(FISH, a_fish("f", api.namespace))
    with pytest.raises(Invalid):
        await api.client.patch(FISH, "f", Strategic({"spec": {"x": 1}}), namespace=api.namespace)


# Server-side apply -------------------------------------------------------------------------------------------------


async def test_applying_makes_changes_and_takes_back_what_is_no_longer_said(api: Api) -> None:
    first = await api.client.apply(CONFIG_MAPS, a_config("a", api.namespace, x="1", y="2"), manager="one")
    assert first.data == {"x": "1", "y": "2"}
    second = await api.client.apply(CONFIG_MAPS, a_config("a", api.namespace, x="5"), manager="one")
    assert (second.data, second.metadata.uid) == ({"x": "5"}, first.metadata.uid)


async def test_managers_keep_to_their_own_fields(api: Api) -> None:
    await api.client.apply(CONFIG_MAPS, a_config("a", api.namespace, x="1"), manager="one")
    both = await api.client.apply(CONFIG_MAPS, a_config("a", api.namespace, y="2"), manager="two")
    assert both.data == {"x": "1", "y": "2"}
    left = await api.client.apply(CONFIG_MAPS, {"metadata": {"name": "a", "namespace": api.namespace}}, manager="two")
    assert left.data == {"x": "1"}


async def test_anothers_field_is_a_conflict_unless_taken_by_force(api: Api) -> None:
    await api.client.apply(CONFIG_MAPS, a_config("a", api.namespace, x="1"), manager="one")
    mine = a_config("a", api.namespace, x="2")
    with pytest.raises(Conflict, match="conflict"):
        await api.client.apply(CONFIG_MAPS, mine, manager="two", force=False)
    assert (await api.client.apply(CONFIG_MAPS, mine, manager="two", force=True)).data == {"x": "2"}
    same = await api.client.apply(CONFIG_MAPS, a_config("a", api.namespace, x="2"), manager="one", force=False)
    assert same.data == {"x": "2"}  # to want the same is no conflict


async def test_applying_an_old_version_is_a_conflict(api: Api) -> None:
    first = await api.client.apply(FISH, a_fish("a", api.namespace, x=1), manager="one")
    await api.client.apply(FISH, a_fish("a", api.namespace, x=2), manager="one")
    late = a_fish("a", api.namespace, x=3)
    late["metadata"]["resourceVersion"] = first["metadata"]["resourceVersion"]
    with pytest.raises(Conflict):
        await api.client.apply(FISH, late, manager="one")


async def test_applying_to_an_object_of_another_uid_is_a_conflict(api: Api) -> None:
    await api.client.apply(FISH, a_fish("a", api.namespace, x=1), manager="one")
    for name in ("a", "not-there"):
        other = a_fish(name, api.namespace, x=3)
        other["metadata"]["uid"] = "11111111-1111-1111-1111-111111111111"
        with pytest.raises(Conflict):
            await api.client.apply(FISH, other, manager="one")


# Subresources ------------------------------------------------------------------------------------------------------


async def test_status_and_spec_have_doors_of_their_own(api: Api) -> None:
    made = await api.client.create(FISH, {**a_fish("a", api.namespace, x=1), "status": {"seen": 0}})
    assert (made["metadata"]["generation"], made.get("status")) == (1, None)
    told = {"metadata": made["metadata"], "spec": {"x": 9}, "status": {"seen": 1}}
    after = await api.client.replace(FISH, told, subresource="status")
    assert (after["spec"], after["status"], after["metadata"]["generation"]) == ({"x": 1}, {"seen": 1}, 1)
    patch = Merge({"spec": {"x": 2}, "status": {"seen": 7}})
    later = await api.client.patch(FISH, "a", patch, namespace=api.namespace)
    assert (later["spec"], later["status"], later["metadata"]["generation"]) == ({"x": 2}, {"seen": 1}, 2)


async def test_status_can_be_applied(api: Api) -> None:
    await api.client.create(FISH, a_fish("a", api.namespace, x=1))
    meta = {"name": "a", "namespace": api.namespace}
    for seen in ({"x": 1, "y": 2}, {"x": 3}):
        after = await api.client.apply(FISH, {"metadata": meta, "status": seen}, manager="one", subresource="status")
        assert (after["status"], after["spec"]) == (seen, {"x": 1})


async def test_a_replacement_of_a_custom_object_must_name_its_version(api: Api) -> None:
    await api.client.create(FISH, a_fish("a", api.namespace, x=1))
    with pytest.raises(Invalid, match="resourceVersion"):
        await api.client.replace(FISH, a_fish("a", api.namespace, x=2))


async def test_scaling_changes_the_field_that_the_kind_says(api: Api) -> None:
    await api.client.create(FISH, a_fish("a", api.namespace, replicas=2))
    assert (await api.client.scale(FISH, "a", namespace=api.namespace)).spec.replicas == 2
    assert (await api.client.set_scale(FISH, "a", 5, namespace=api.namespace)).spec.replicas == 5
    assert (await api.client.set_scale(FISH, "a", 0, namespace=api.namespace)).spec.replicas == 0
    assert (await api.client.get(FISH, "a", namespace=api.namespace))["spec"]["replicas"] == 0


async def test_a_pod_is_resized_in_place(api: Api) -> None:
    assert await api.client.is_served(PODS, "resize")
    pod = msgspec.to_builtins(a_pod("a", api.namespace, host="nowhere"))
    pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "100m", "memory": "64Mi"}}
    await api.client.create(PODS, pod)
    more = {"name": "main", "resources": {"requests": {"cpu": "200m", "memory": "64Mi"}}}
    patch = Strategic({"spec": {"containers": [more]}})
    after = await api.client.patch(PODS, "a", patch, namespace=api.namespace, subresource="resize")
    assert after.spec.containers[0].resources.requests["cpu"] == "200m"
    assert after.spec.containers[0].image == "none.invalid/image"


async def test_a_pod_cannot_be_resized_to_request_more_than_its_limit(api: Api) -> None:
    pod = msgspec.to_builtins(a_pod("a", api.namespace, host="nowhere"))
    pod["spec"]["containers"][0]["resources"] = {"requests": {"memory": "64Mi"}, "limits": {"memory": "64Mi"}}
    await api.client.create(PODS, pod)
    less = Strategic({"spec": {"containers": [{"name": "main", "resources": {"limits": {"memory": "32Mi"}}}]}})
    with pytest.raises(Invalid, match="must be less than or equal to memory limit of 32Mi"):
        await api.client.patch(PODS, "a", less, namespace=api.namespace, subresource="resize")


async def test_a_service_account_gets_a_token(api: Api) -> None:
    await api.client.create(SERVICE_ACCOUNTS, ServiceAccount(ObjectMeta(name="agent", namespace=api.namespace)))
    request = TokenRequest(TokenRequestSpec(expiration_seconds=3600))
    given = (await api.client.request_token("agent", request, namespace=api.namespace)).status
    assert given.token
    assert given.expiration_timestamp is not None
    assert given.token not in repr(given)


async def test_what_the_server_serves_can_be_asked(api: Api) -> None:
    assert await api.client.is_served(FISH, "scale")
    assert not await api.client.is_served(FISH, "resize")
    assert not await api.client.is_served(Kind(group="air.shoal.dev", version="v1", kind="B", plural="b", type=dict))
    version = await api.client.get_path("/version")
    assert version is not None
    assert version["major"] == "1"
    assert await api.client.get_path("/nothing/here") is None


# Deleting ----------------------------------------------------------------------------------------------------------


async def test_what_is_deleted_is_gone(api: Api) -> None:
    await api.client.create(CONFIG_MAPS, a_config("a", api.namespace))
    assert await api.client.delete(CONFIG_MAPS, "a", namespace=api.namespace) is None
    with pytest.raises(NotFound):
        await api.client.get(CONFIG_MAPS, "a", namespace=api.namespace)


async def test_only_what_was_meant_is_deleted(api: Api) -> None:
    first = await api.client.create(CONFIG_MAPS, a_config("a", api.namespace))
    with pytest.raises(Conflict):
        await api.client.delete(CONFIG_MAPS, "a", namespace=api.namespace, uid="11111111-1111-1111-1111-111111111111")
    await api.client.patch(CONFIG_MAPS, "a", Merge({"data": {"x": "1"}}), namespace=api.namespace)
    old = first.metadata.resource_version
    with pytest.raises(Conflict):
        await api.client.delete(CONFIG_MAPS, "a", namespace=api.namespace, version=old)
    assert await api.client.delete(CONFIG_MAPS, "a", namespace=api.namespace, uid=first.metadata.uid) is None


async def test_a_finalizer_holds_an_object_until_it_is_taken_off(api: Api) -> None:
    await api.client.create(CONFIG_MAPS, a_config("a", api.namespace, finalizers=("shoal.dev/hold",)))
    held = await api.client.delete(CONFIG_MAPS, "a", namespace=api.namespace)
    assert held is not None
    assert held.metadata.deletion_timestamp is not None
    off = Merge({"metadata": {"finalizers": None}})
    await api.client.patch(CONFIG_MAPS, "a", off, namespace=api.namespace)
    with pytest.raises(NotFound):
        await api.client.get(CONFIG_MAPS, "a", namespace=api.namespace)


async def test_a_pod_on_no_host_is_deleted_at_once_and_one_on_a_host_is_given_time(api: Api) -> None:
    await api.client.create(PODS, a_pod("pending", api.namespace))
    assert await api.client.delete(PODS, "pending", namespace=api.namespace) is None
    with pytest.raises(NotFound):
        await api.client.get(PODS, "pending", namespace=api.namespace)

    await api.client.create(PODS, a_pod("placed", api.namespace, host="nowhere"))
    ending = await api.client.delete(PODS, "placed", namespace=api.namespace)
    assert ending is not None
    assert ending.metadata.deletion_grace_period_seconds == 30
    assert await api.client.delete(PODS, "placed", namespace=api.namespace, grace_seconds=0) is None
    with pytest.raises(NotFound):
        await api.client.get(PODS, "placed", namespace=api.namespace)


async def test_an_eviction_of_another_pod_of_that_name_is_refused(api: Api) -> None:
    await api.client.create(PODS, a_pod("a", api.namespace))
    with pytest.raises(Conflict):
        await api.client.evict("a", namespace=api.namespace, uid="another")
    there = await api.client.get(PODS, "a", namespace=api.namespace)
    assert there.metadata.deletion_timestamp is None
    await api.client.evict("a", namespace=api.namespace, uid=there.metadata.uid)


async def test_an_evicted_pod_is_deleted(api: Api) -> None:
    await api.client.create(PODS, a_pod("a", api.namespace))
    await api.client.evict("a", namespace=api.namespace)
    with pytest.raises(NotFound):
        await api.client.get(PODS, "a", namespace=api.namespace)


async def test_one_finalizer_of_an_evicted_pod_is_taken_off_and_the_last_lets_it_go(api: Api) -> None:
    pod = msgspec.to_builtins(a_pod("a", api.namespace))
    pod["metadata"]["finalizers"] = ["shoal.dev/hold", "shoal.dev/count"]
    uid = (await api.client.create(PODS, pod)).metadata.uid
    await api.client.evict("a", namespace=api.namespace, uid=uid)

    def off(finalizer: str, uid: str) -> Strategic:
        return Strategic({"metadata": {"uid": uid, "$deleteFromPrimitiveList/finalizers": [finalizer]}})

    with pytest.raises(Conflict):
        await api.client.patch(PODS, "a", off("shoal.dev/count", "another"), namespace=api.namespace)
    for _ in range(2):  # what is not there needs no taking off
        left = await api.client.patch(PODS, "a", off("shoal.dev/count", uid), namespace=api.namespace)
        assert left.metadata.finalizers == ["shoal.dev/hold"]
    await api.client.patch(PODS, "a", off("shoal.dev/hold", uid), namespace=api.namespace)
    with pytest.raises(NotFound):
        await api.client.get(PODS, "a", namespace=api.namespace)


def owned_by(owner: Any, *, block: bool | None = None) -> OwnerReference:
    meta = owner.metadata
    return OwnerReference("v1", "ConfigMap", meta.name, meta.uid, controller=True, block_owner_deletion=block)


async def gone(api: Api, *names: str) -> None:
    async with asyncio.timeout(60):
        while {c.metadata.name for c in (await api.client.list(CONFIG_MAPS, namespace=api.namespace)).items} & set(
            names
        ):
            await asyncio.sleep(0.05)


async def test_what_a_deleted_object_owned_is_collected(api: Api) -> None:
    owner = await api.client.create(CONFIG_MAPS, a_config("owner", api.namespace))
    child = await api.client.create(CONFIG_MAPS, a_config("child", api.namespace, owner=owned_by(owner)))
    await api.client.create(CONFIG_MAPS, a_config("grandchild", api.namespace, owner=owned_by(child)))
    await api.client.create(CONFIG_MAPS, a_config("other", api.namespace))
    await api.client.delete(CONFIG_MAPS, "owner", namespace=api.namespace)
    await gone(api, "owner", "child", "grandchild")
    await api.client.get(CONFIG_MAPS, "other", namespace=api.namespace)


async def test_an_object_made_for_an_owner_that_is_gone_is_collected(api: Api) -> None:
    owner = await api.client.create(CONFIG_MAPS, a_config("owner", api.namespace))
    await api.client.delete(CONFIG_MAPS, "owner", namespace=api.namespace)
    await api.client.create(CONFIG_MAPS, a_config("late", api.namespace, owner=owned_by(owner)))
    await gone(api, "late")


async def test_orphans_are_left_alone(api: Api) -> None:
    owner = await api.client.create(CONFIG_MAPS, a_config("owner", api.namespace))
    await api.client.create(CONFIG_MAPS, a_config("child", api.namespace, owner=owned_by(owner)))
    await api.client.delete(CONFIG_MAPS, "owner", namespace=api.namespace, propagation=Propagation.ORPHAN)
    await gone(api, "owner")
    child = await api.client.get(CONFIG_MAPS, "child", namespace=api.namespace)
    assert child.metadata.owner_references == []


async def test_in_the_foreground_an_owner_goes_last(api: Api) -> None:
    owner = await api.client.create(CONFIG_MAPS, a_config("owner", api.namespace))
    child = a_config("child", api.namespace, owner=owned_by(owner, block=True), finalizers=("shoal.dev/hold",))
    await api.client.create(CONFIG_MAPS, child)
    left = await api.client.delete(CONFIG_MAPS, "owner", namespace=api.namespace, propagation=Propagation.FOREGROUND)
    assert left is not None
    assert "foregroundDeletion" in left.metadata.finalizers
    async with asyncio.timeout(60):
        while (await api.client.get(CONFIG_MAPS, "child", namespace=api.namespace)).metadata.deletion_timestamp is None:
            await asyncio.sleep(0.05)
    await api.client.get(CONFIG_MAPS, "owner", namespace=api.namespace)
    off = Merge({"metadata": {"finalizers": None}})
    await api.client.patch(CONFIG_MAPS, "child", off, namespace=api.namespace)
    await gone(api, "owner", "child")


async def test_nothing_new_is_made_in_a_namespace_that_ends_or_is_not_there(api: Api) -> None:
    with pytest.raises(NotFound):
        await api.client.create(CONFIG_MAPS, a_config("a", "there-is-no-such-namespace"))
    name = f"{api.namespace[:40]}-end"
    await api.client.create(NAMESPACES, Namespace(ObjectMeta(name=name)))
    await api.client.create(CONFIG_MAPS, a_config("held", name, finalizers=("shoal.dev/hold",)))
    await api.client.delete(NAMESPACES, name)
    with pytest.raises(NamespaceEnding, match="being terminated"):
        await api.client.create(CONFIG_MAPS, a_config("a", name))
    await api.client.patch(CONFIG_MAPS, "held", Merge({"metadata": {"finalizers": None}}), namespace=name)


# Lists and watches -------------------------------------------------------------------------------------------------


async def test_a_list_comes_in_pages_of_one_version(api: Api) -> None:
    for number in range(7):
        await api.client.create(FISH, a_fish(f"f{number}", api.namespace))
    pages = [page async for page in api.client.pages(FISH, namespace=api.namespace, page_size=3)]
    assert [len(page.items) for page in pages] == [3, 3, 1]
    assert len({page.version for page in pages}) == 1
    whole = await api.client.list(FISH, namespace=api.namespace)
    assert [fish["metadata"]["name"] for fish in whole.items] == [f"f{number}" for number in range(7)]


async def test_a_list_of_metadata_has_names_labels_and_owners(api: Api) -> None:
    made = await api.client.create(PODS, a_pod("a", api.namespace, labels={"job": "x"}))
    (found,) = (await api.client.list_metadata(PODS, namespace=api.namespace)).items
    assert (found.metadata.uid, found.metadata.labels) == (made.metadata.uid, {"job": "x"})


async def test_labels_and_fields_select(api: Api) -> None:
    for name, labels in {"a": {"job": "x"}, "b": {"job": "y"}, "c": {"job": "z", "old": "1"}, "d": {}}.items():
        await api.client.create(PODS, a_pod(name, api.namespace, labels=labels))

    async def names(labels: str | None = None, fields: str | None = None) -> str:
        listing = await api.client.list(PODS, namespace=api.namespace, labels=labels, fields=fields)
        return "".join(sorted(pod.metadata.name for pod in listing.items))

    assert await names("job=x") == "a"
    assert await names("job!=x") == "bcd"
    assert await names("job in (x,y)") == "ab"
    assert await names("job notin (x, y)") == "cd"
    assert await names("job,!old") == "ab"
    assert await names(fields="metadata.name=b") == "b"
    assert await names(fields="status.phase!=Pending") == ""


async def next_of(events: Any, wanted: EventType, name: str) -> WatchEvent[Any]:
    """The next event of a type about an object; bookmarks come when they like."""
    async for event in events:
        if event.type is not EventType.BOOKMARK:
            assert (event.type, event.object.metadata.name) == (wanted, name)
            found: WatchEvent[Any] = event
            return found
    raise AssertionError("the watch ended")


async def test_a_watch_tells_everything_since_a_version_in_order(api: Api) -> None:
    version = (await api.client.list(CONFIG_MAPS, namespace=api.namespace, labels="w=1")).version
    labelled = {"metadata": {"name": "a", "namespace": api.namespace, "labels": {"w": "1"}}}
    made = await api.client.create(CONFIG_MAPS, labelled)
    await api.client.patch(CONFIG_MAPS, "a", Merge({"data": {"x": "1"}}), namespace=api.namespace)
    async with api.client.watch(CONFIG_MAPS, since=version, namespace=api.namespace, labels="w=1") as events:
        added = await next_of(events, EventType.ADDED, "a")
        assert added.object == made
        changed = await next_of(events, EventType.MODIFIED, "a")
        assert changed.object.data == {"x": "1"}
        await api.client.delete(CONFIG_MAPS, "a", namespace=api.namespace)
        removed = await next_of(events, EventType.DELETED, "a")
        versions = [int(event.version) for event in (added, changed, removed)]
        assert versions == sorted(set(versions))


async def test_what_leaves_a_selector_is_deleted_for_its_watch_and_comes_back_as_added(api: Api) -> None:
    version = (await api.client.list(CONFIG_MAPS, namespace=api.namespace, labels="w=1")).version
    await api.client.create(CONFIG_MAPS, a_config("a", api.namespace))
    async with api.client.watch(CONFIG_MAPS, since=version, namespace=api.namespace, labels="w=1") as events:
        for value, told in (("1", EventType.ADDED), ("2", EventType.DELETED), ("1", EventType.ADDED)):
            patch = Merge({"metadata": {"labels": {"w": value}}})
            after = await api.client.patch(CONFIG_MAPS, "a", patch, namespace=api.namespace)
            event = await next_of(events, told, "a")
            assert event.version == after.metadata.resource_version


async def test_a_watch_from_a_version_that_is_no_more_says_so(api: Api) -> None:
    async def first_event() -> None:
        async with api.client.watch(FISH, since="1", namespace=api.namespace) as events:
            await anext(aiter(events))

    async with asyncio.timeout(60):
        while True:
            try:
                with pytest.raises(Gone):
                    await first_event()
                return
            except TooManyRequests:  # a real server that has just learnt of the kind
                await asyncio.sleep(0.1)


# Who may what ------------------------------------------------------------------------------------------------------


async def test_a_refusal_names_the_permission_that_is_missing(api: Api) -> None:
    await api.reader.list(PODS, namespace=api.namespace)
    with pytest.raises(Forbidden, match=f"create secrets in namespace {api.namespace}") as refused:
        await api.reader.create(SECRETS, Secret(ObjectMeta(name="a", namespace=api.namespace)))
    permission = refused.value.permission
    assert permission is not None
    assert (permission.verb, permission.resource, permission.namespace) == ("create", "secrets", api.namespace)
    with pytest.raises(Forbidden, match="list nodes cluster-wide"):
        await api.reader.list(NODES)
    with pytest.raises(Forbidden, match=r"patch fish/status of sea\.shoal\.dev"):
        await api.reader.patch(FISH, "a", Merge({}), namespace=api.namespace, subresource="status")
    with pytest.raises(Forbidden, match=r"watch fish of sea\.shoal\.dev"):
        async with api.reader.watch(FISH, since="1", namespace=api.namespace):
            pass


async def test_somebody_the_server_does_not_know_is_told_so(api: Api) -> None:
    with pytest.raises(Unauthorized, match="credentials"):
        await api.stranger.list(PODS, namespace=api.namespace)


async def test_one_can_ask_what_one_may(api: Api) -> None:
    for verb, allowed in (("get", True), ("delete", False)):
        attributes = ResourceAttributes(namespace=api.namespace, verb=verb, resource="pods")
        review = SelfSubjectAccessReview(spec=AccessReviewSpec(attributes))
        assert (await api.reader.create(ACCESS_REVIEWS, review)).status.allowed is allowed


# What stands on it -------------------------------------------------------------------------------------------------


async def test_an_informer_holds_what_the_server_holds(api: Api) -> None:
    await api.client.create(PODS, a_pod("before", api.namespace, labels={"job": "x"}))
    informer = Informer(
        api.client,
        PODS,
        namespace=api.namespace,
        indexers={"job": by_label("job"), "owner": by_owner},
        settings=QUICK_INFORMER,
    )
    other = Client(api.client.access)  # somebody else: what it writes comes by the watch
    running = asyncio.create_task(informer.run())
    try:
        await informer.synced()
        assert [pod.metadata.name for pod in informer.all()] == ["before"]
        await other.create(PODS, a_pod("after", api.namespace, labels={"job": "x"}))
        await until(lambda: len(informer.found("job", "x")) == 2)
        await other.delete(PODS, "before", namespace=api.namespace)
        await until(lambda: informer.get(api.namespace, "before") is None)
        listed = (await api.client.list(PODS, namespace=api.namespace)).items
        assert informer.all() == list(listed)
        assert informer.trouble is None
        assert informer.staleness() is not None
    finally:
        running.cancel()
        await asyncio.wait({running})
        await other.close()


async def test_an_informer_is_never_older_than_what_was_written_through_its_client(api: Api) -> None:
    informer = Informer(api.client, CONFIG_MAPS, namespace=api.namespace, settings=QUICK_INFORMER)
    running = asyncio.create_task(informer.run())
    try:
        await informer.synced()
        await api.client.create(CONFIG_MAPS, a_config("a", api.namespace, x="0"))
        for number in range(1, 20):
            change = Merge({"data": {"x": str(number)}})
            await api.client.patch(CONFIG_MAPS, "a", change, namespace=api.namespace)
            known = informer.get(api.namespace, "a")
            assert known is not None
            assert known.data == {"x": str(number)}
        await api.client.delete(CONFIG_MAPS, "a", namespace=api.namespace)
        assert informer.get(api.namespace, "a") is None
    finally:
        running.cancel()
        await asyncio.wait({running})


ELECTION = ElectorSettings(lease_seconds=3.0, renew_seconds=2.0, retry_seconds=0.1)


async def test_one_leads_at_a_time_and_the_next_one_has_a_higher_term(api: Api) -> None:
    electors = [
        Elector(api.client, name="lead", namespace=api.namespace, identity=name, settings=ELECTION) for name in "ab"
    ]
    terms: list[int] = []
    reached = asyncio.Event()

    async def lead(elector: Elector) -> None:
        assert sum(each.is_leader() for each in electors) == 1
        terms.append(elector.term)
        reached.set()
        await asyncio.Event().wait()

    running = {each: asyncio.create_task(each.run(lambda each=each: lead(each))) for each in electors}
    await reached.wait()
    (first,) = [each for each in electors if each.is_leader()]
    (second,) = [each for each in electors if each is not first]
    with pytest.raises(LeaseLost):
        await api.client.fenced(second.check).create(CONFIG_MAPS, a_config("a", api.namespace))
    await api.client.fenced(first.check).create(CONFIG_MAPS, a_config("a", api.namespace))
    reached.clear()
    running[first].cancel()  # gives the lease up on its way out
    await reached.wait()
    assert second.is_leader()
    assert not first.is_leader()
    assert terms[1] > terms[0]
    running[second].cancel()
    await asyncio.wait(running.values())


async def test_events_that_repeat_are_one_event_with_a_count(api: Api) -> None:
    pod = await api.client.create(PODS, a_pod("a", api.namespace))
    recorder = Recorder(
        api.client,
        controller="shoal-test",
        instance="shoal-test-0",
        settings=RecorderSettings(repeat_seconds=0.01),
        rng=random.Random(1),
    )
    recorder.record(reference(PODS, pod), reason="Resized", note="3 -> 5 workers")
    await recorder.flush(timeout=30)
    for _ in range(3):
        recorder.record(reference(PODS, pod), reason="Resized", note="3 -> 5 workers")
    recorder.record(reference(PODS, pod), reason="MemberLost", note="x" * 5000, type="Warning")
    await recorder.flush(timeout=30)
    events = (await api.client.list(EVENTS, namespace=api.namespace)).items
    ours = {event.reason: event for event in events if event.reporting_controller == "shoal-test"}
    assert set(ours) == {"Resized", "MemberLost"}
    series = ours["Resized"].series
    assert series is not None
    assert series.count == 4
    assert ours["Resized"].regarding.uid == pod.metadata.uid
    assert (ours["MemberLost"].type, len(ours["MemberLost"].note)) == ("Warning", 1024)
    assert recorder.dropped == 0
