"""Online services beside the training jobs: Pods that are not ours, as many as the hour asks for."""

from shoal.scheduler.rows import Room, ServicePod
from shoal.sim.state import Hosts, Pod
from shoal.sim.workload import ServiceSpec


class Service:
    """One service and its Pods. They start and stop at once, and go where there is room."""

    def __init__(self, spec: ServiceSpec) -> None:
        self.spec = spec
        self.pods: list[Pod] = []
        self._made = 0

    def follow(self, hosts: Hosts, now: float) -> bool:
        """Make or delete Pods until there are as many as it wants: those without a host go first, then the newest.
        True: something has changed."""
        wanted = self.spec.wanted(now)
        changed = len(self.pods) != wanted
        while len(self.pods) < wanted:
            self.pods.append(Pod(f"{self.spec.name}-{self._made}", self.spec.each, self._made, since=now))
            self._made += 1
        while len(self.pods) > wanted:
            pod = min(self.pods, key=lambda each: (each.host is not None, -each.ordinal))
            self.pods.remove(pod)
            if pod.host is not None:
                hosts.give_back(pod.host, pod.each)
        return changed

    def bind(self, hosts: Hosts) -> None:
        for pod in self.pods:
            if pod.host is None and (host := hosts.choose(pod.each, pod.wanted)) is not None:
                pod.host = host
                hosts.take(host, pod.each)

    def lose(self, host: int, hosts: Hosts, now: float) -> None:
        """The host has failed; its Pods are made anew elsewhere."""
        for pod in self.pods:
            if pod.host == host:
                hosts.give_back(host, pod.each)
                pod.host, pod.since = None, now

    def homeless(self) -> list[ServicePod]:
        return [
            ServicePod(namespace="services", name=pod.name, each=pod.each, since=pod.since)
            for pod in self.pods
            if pod.host is None
        ]

    def taken(self) -> dict[int, Room]:
        """By host."""
        rooms: dict[int, Room] = {}
        for pod in self.pods:
            if pod.host is not None:
                rooms[pod.host] = rooms.get(pod.host, Room()).plus(pod.each)
        return rooms
