"""Kubernetes as the cluster's scheduler needs it: hosts, what every Pod takes, quotas, and its settings.

Four informers keep that up to date. An identity that may not look at hosts, or at Pods of other namespaces than the one
it works in, gets no hosts (`sees_hosts`): the scheduler then holds jobs against quotas only.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from shoal.core.hosts import HostSeen, PodUse, QuotaSeen
from shoal.platforms.kubernetes.cache import Change, Removed, Updated
from shoal.platforms.kubernetes.client import Client
from shoal.platforms.kubernetes.events import Recorder, reference
from shoal.platforms.kubernetes.hosts import HostBook
from shoal.platforms.kubernetes.informer import Caches, Informer, InformerSettings
from shoal.platforms.kubernetes.objects import (
    ACCESS_REVIEWS,
    CONFIG_MAPS,
    NODES,
    PODS,
    RESOURCE_QUOTAS,
    AccessReviewSpec,
    ConfigMap,
    Node,
    Pod,
    ResourceAttributes,
    ResourceQuota,
    SelfSubjectAccessReview,
)
from shoal.platforms.kubernetes.uses import host_seen, pod_use, quota_seen

_NEEDED = (("nodes", "list"), ("nodes", "watch"), ("pods", "list"), ("pods", "watch"))


async def may_see_hosts(client: Client) -> bool:
    """Whether we may look at all hosts, and at all Pods on them."""
    for resource, verb in _NEEDED:
        asked = ResourceAttributes(verb=verb, resource=resource)
        review = SelfSubjectAccessReview(spec=AccessReviewSpec(resource_attributes=asked))
        if not (await client.create(ACCESS_REVIEWS, review)).status.allowed:
            return False
    return True


class KubernetesRoom(Caches):
    """`run` keeps it up to date; before `synced` nothing may be read."""

    def __init__(
        self,
        client: Client,
        *,
        recorder: Recorder,
        home: str,
        config_map: str,
        namespace: str | None,
        sees_hosts: bool,
        settings: InformerSettings | None = None,
    ) -> None:
        """`namespace` None: all of them. `home` is where the ConfigMap with the settings is."""
        self.sees_hosts = sees_hosts
        self._recorder = recorder
        self._home, self._config_map = home, config_map
        whose = None if sees_hosts else namespace
        self._nodes: Informer[Node] = Informer(client, NODES, settings=settings)
        self._pods: Informer[Pod] = Informer(client, PODS, namespace=whose, settings=settings)
        self._quotas: Informer[ResourceQuota] = Informer(
            client, RESOURCE_QUOTAS, namespace=namespace, settings=settings
        )
        self._settings: Informer[ConfigMap] = Informer(
            client, CONFIG_MAPS, namespace=home, fields=f"metadata.name={config_map}", settings=settings
        )
        self._seen: dict[str, tuple[str, HostSeen]] = {}
        self.book = HostBook()
        """Which hosts are down."""
        self._nodes.on_change(self.book.happened)
        self._nodes.on_hearing(self._hearing)

    @property
    def informers(self) -> Sequence[Informer[Any]]:
        rest = (self._pods, self._quotas, self._settings)
        return (self._nodes, *rest) if self.sees_hosts else rest

    @property
    def indispensable(self) -> Sequence[Informer[Any]]:
        """All but the settings: without them the defaults hold (`settings_read`)."""
        return [informer for informer in self.informers if informer is not self._settings]

    async def settings_read(self, patience: float) -> str | None:
        """Wait for the settings, but not for ever. Returns why they could not be read."""
        try:
            async with asyncio.timeout(patience):
                await self._settings.synced()
        except TimeoutError:
            return self._settings.trouble or "no answer"
        return None

    # Telling -----------------------------------------------------------------------------------------------------

    def on_pod(self, saw: Callable[[PodUse], None], gone: Callable[[str], None]) -> None:
        """Tell what a Pod takes whenever that changes, and the uid of one that is gone."""

        def change(change: Change[Pod]) -> None:
            if isinstance(change, Removed):
                gone(change.object.metadata.uid)
                return
            use = pod_use(change.object)
            if isinstance(change, Updated) and change.before.metadata.uid != use.uid:
                gone(change.before.metadata.uid)
            elif isinstance(change, Updated) and pod_use(change.before) == use:
                return
            saw(use)

        self._pods.on_change(change)

    def on_change(self, happened: Callable[[], None]) -> None:
        """Tell that hosts or quotas changed. A host says every minute that it is well: that is no change."""

        def node(change: Change[Node]) -> None:
            if not (isinstance(change, Updated) and host_seen(change.before) == host_seen(change.object)):
                happened()

        self._nodes.on_change(node)
        self._quotas.on_change(lambda _: happened())

    def on_settings(self, told: Callable[[ConfigMap | None], None]) -> None:
        """Tell what the settings' ConfigMap holds, whenever that changes; None: it was deleted."""
        self._settings.on_change(lambda change: told(None if isinstance(change, Removed) else change.object))

    def _hearing(self, hears: bool) -> None:
        now = datetime.now(UTC)
        if hears:
            self.book.hears(now)
        else:
            self.book.hears_nothing(now)

    # Reading -----------------------------------------------------------------------------------------------------

    def hosts(self) -> Sequence[HostSeen] | None:
        """None: we may not look at them."""
        if not self.sees_hosts:
            return None
        known = {}
        for node in self._nodes.all():
            version = node.metadata.resource_version
            before = self._seen.get(node.metadata.name)
            known[node.metadata.name] = before if before and before[0] == version else (version, host_seen(node))
        self._seen = known
        return [host for _, host in known.values()]

    def quotas(self) -> Sequence[QuotaSeen]:
        seen = (quota_seen(quota) for quota in self._quotas.all())
        return [quota for quota in seen if quota is not None]

    def tell_settings(self, about: ConfigMap, *, reason: str, note: str, warning: bool) -> None:
        self._recorder.record(
            reference(CONFIG_MAPS, about), reason=reason, note=note, type="Warning" if warning else "Normal"
        )

    def tell_pod(self, namespace: str, name: str, *, reason: str, note: str) -> None:
        pod = self._pods.get(namespace, name)
        if pod is not None:
            self._recorder.record(reference(PODS, pod), reason=reason, note=note, type="Warning")
