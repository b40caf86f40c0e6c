"""A real Kubernetes cluster on this machine, for tests and for people: see `cluster.py`, and `hack/kube/README.md`.

from hack.kube.harness import Cluster

with Cluster(folder, simulated_hosts=True) as cluster:
    cluster.hosts.add(100, gpus=8)
    print(cluster.kubectl("get", "nodes"))
"""

from .api import Api, ApiError, Object
from .cluster import Cluster
from .images import BUSYBOX, Image
from .parts import Unavailable
from .processes import ComponentDied
from .teardown import tear_down

__all__ = ["BUSYBOX", "Api", "ApiError", "Cluster", "ComponentDied", "Image", "Object", "Unavailable", "tear_down"]
