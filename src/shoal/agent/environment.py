"""The environment of a training process: torchrun's variables, and ours under one prefix. Pure."""

from collections.abc import Mapping
from pathlib import Path

from shoal.agent.settings import SECRETS, AgentSettings
from shoal.core.nodes import NodeId, Role, parsed
from shoal.core.saving import CheckpointSpec
from shoal.core.world import World
from shoal.wire.local import (
    CHECKPOINT_DIR_VARIABLE,
    CHECKPOINT_FUZZY_VARIABLE,
    CHECKPOINT_KEEP_VARIABLE,
    CHECKPOINT_SECONDS_VARIABLE,
    ROLE_VARIABLE,
    SOCKET_VARIABLE,
)
from shoal.wire.messages import PLAIN_STORE


def environment(
    settings: AgentSettings,
    *,
    node: str,
    incarnation: int,
    local_rank: int,
    max_restarts: int,
    socket: Path,
    error_file: Path,
    world: World | None,
    store: Mapping[str, bytes],
    checkpoint: CheckpointSpec | None = None,
) -> dict[str, str]:
    """All variables of one process. Without a world (it will be given one by the SDK) there are no ranks yet."""
    variables = {name: value for name, value in settings.environment.items() if name not in SECRETS}
    variables.setdefault("PYTHONUNBUFFERED", "1")
    variables.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    threads = settings.omp_threads or (1 if settings.slots > 1 else None)
    if threads is not None:
        variables.setdefault("OMP_NUM_THREADS", str(threads))
    if settings.gpus is not None:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(settings.gpus)
    variables |= {
        SOCKET_VARIABLE: str(socket),
        "SHOAL_JOB": settings.job,
        "SHOAL_NODE": node,
        ROLE_VARIABLE: _role(node),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(settings.slots),
        "ROLE_NAME": settings.role,
        "TORCHELASTIC_MAX_RESTARTS": str(max_restarts),
        "TORCHELASTIC_RUN_ID": settings.run_id or settings.job,
        "TORCHELASTIC_ERROR_FILE": str(error_file),
        "TORCHELASTIC_RESTART_COUNT": str(incarnation - 1),
    }
    if world is not None:
        variables |= _of_world(world, node, local_rank, store)
    return variables | _of_checkpoints(checkpoint or CheckpointSpec(), settings.checkpoint.directory)


def _role(node: str) -> str:
    name = parsed(node)
    return Role.WORKER if name is None else name[0]


def _of_checkpoints(spec: CheckpointSpec, here: str | None) -> dict[str, str]:
    """For processes that write checkpoints themselves. `here`: where the directory is on this machine, if elsewhere."""
    directory = here or spec.directory
    if directory is None:
        return {}
    return {
        CHECKPOINT_DIR_VARIABLE: directory,
        CHECKPOINT_SECONDS_VARIABLE: f"{spec.seconds:g}",
        CHECKPOINT_KEEP_VARIABLE: str(spec.keep),
        **({CHECKPOINT_FUZZY_VARIABLE: "1"} if spec.fuzzy else {}),
    }


def _of_world(world: World, node: str, local_rank: int, store: Mapping[str, bytes]) -> dict[str, str]:
    member = world.member(NodeId(node))
    assert member is not None
    rank, size = str(member.base_rank + local_rank), str(world.size)
    variables = {
        "RANK": rank,
        "WORLD_SIZE": size,
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": size,
        "GROUP_RANK": str(world.members.index(member)),
        "GROUP_WORLD_SIZE": str(len(world.members)),
        # The same on all nodes: older torch puts it into the store's keys. A script that asks whether it is the
        # first start gets the right answer after a resize too.
        "TORCHELASTIC_RESTART_COUNT": str(world.generation - 1),
    }
    if PLAIN_STORE in store:
        host, _, port = store[PLAIN_STORE].decode().rpartition(":")
        variables |= {"MASTER_ADDR": host, "MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": "True"}
    return variables


def arguments(command: tuple[str, ...], local_rank: int) -> list[str]:
    """The command of one process; torchrun's one macro is filled in."""
    return [word.replace("${local_rank}", str(local_rank)) for word in command]
