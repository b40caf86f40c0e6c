"""What the node's GPUs do, asked of NVML: only where the `gpu` extra is installed and a driver is loaded.

Without one of them there is nothing to tell, and nothing is said about it: most machines have no GPU. Training
processes are watched by `/proc` in any case.
"""

import importlib
from typing import Any

from shoal.wire.messages import GpuSeen


class Gpus:
    """The GPUs that `CUDA_VISIBLE_DEVICES` leaves to this node. Found once; asked with each heartbeat."""

    def __init__(self, visible: str | None) -> None:
        self._nvml = _nvml()
        self._handles: dict[str, Any] = {}
        if self._nvml is not None:
            self._handles = _handles(self._nvml, visible)

    def look(self) -> tuple[GpuSeen, ...]:
        """One entry for each GPU that answers."""
        if self._nvml is None:
            return ()
        found: list[GpuSeen] = []
        for name, handle in self._handles.items():
            try:
                busy = self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu
                memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
            except self._nvml.NVMLError:
                continue  # it fell off the bus, or cannot tell (MIG)
            found.append(GpuSeen(gpu=name, busy=busy / 100, memory_bytes=memory.used, memory_total=memory.total))
        return tuple(found)


def _nvml() -> Any | None:
    """The library, ready to be asked; None: not here."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    return nvml


def _handles(nvml: Any, visible: str | None) -> dict[str, Any]:
    """By the names that `CUDA_VISIBLE_DEVICES` uses: indices, or UUIDs with their `GPU-`."""
    handles: dict[str, Any] = {}
    try:
        count = nvml.nvmlDeviceGetCount()
        names = map(str, range(count)) if visible is None else (name.strip() for name in visible.split(","))
        for name in filter(None, names):
            find = nvml.nvmlDeviceGetHandleByIndex if name.isdecimal() else nvml.nvmlDeviceGetHandleByUUID
            handles[name] = find(int(name) if name.isdecimal() else name)
    except nvml.NVMLError:
        pass  # CUDA's rule: the list ends at the first that is not there
    return handles
