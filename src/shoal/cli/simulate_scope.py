"""Which flags of `shoal simulate` mean something for which of the things that it can run.

A flag on the command line that would change nothing is refused, with those that apply: whoever writes `--hosts 8` and
gets a table of another cluster believes the wrong number. A variable in the environment is different: it is said once
for all runs, and counts where it applies.
"""

from collections.abc import Collection, Mapping, Sequence

from shoal.cli.flags import Given
from shoal.core.errors import BadInput

TRACES, SYNTHETIC, LIVE = "trace files", "--synthetic", "--cluster live"
POLLUX, REPLAY, EDL = "--experiment pollux", "--experiment replay", "--experiment edl"
LABORATORY = "--experiment laboratory"

SHOWN = ("json", "plots", "plot_format")
TIMES = ("interval", "spacing", "pod_start", "startup", "resize", "grace", "until", "ground")
SIMULATED = (
    "policy", "seed", "hosts", "gpus", "cores", "memory", "service", "host_mtbf", "host_repair", "interference", *TIMES,
)  # fmt: skip
LIVE_CLUSTER = (
    "kubeconfig", "context", "namespace", "home", "scheduler_settings", "lease", "training_image", "gpu_resource",
    "drain",
)  # fmt: skip
APPLIES: Mapping[str, Collection[str]] = {
    TRACES: (*SIMULATED, "traces", "limit", "growth", "efficiency", "output", *SHOWN),
    SYNTHETIC: ("synthetic", *SIMULATED, "output", *SHOWN),
    POLLUX: ("experiment", "policy", "load", "traces", "output", *SHOWN),
    REPLAY: ("experiment", "load", "traces", "output", *SHOWN),
    EDL: ("experiment", "policy", "case", "seed", "output", *SHOWN),
    LABORATORY: ("experiment", "seed", "output", *SHOWN),
    LIVE: ("cluster", *LIVE_CLUSTER, "output"),
}
"""By `Flag.key`, in the order in which they are told."""
NEEDS = {"host_repair": "host_mtbf", "plot_format": "plots"}
"""Flags that mean something only beside another."""
OF_ANOTHER_GROUND = ("spacing", "pod_start", "startup", "resize", "grace")
"""What Pollux's ground says by itself."""
ASSUMED = ("growth", "efficiency")
"""Of jobs whose speed was not measured."""


def check_scope(said: Mapping[str, Given], source: str) -> None:
    """Raises `BadInput` for the first flag that means nothing there."""
    for key in _typed(said):
        if key not in APPLIES[source]:
            others = [_flag(each) for each in APPLIES[source] if each not in ("experiment", "synthetic", "cluster")]
            raise BadInput(f"{_flag(key)} has no meaning with {source}; what applies there: {', '.join(others)}")
        if key in NEEDS and NEEDS[key] not in said:
            raise BadInput(f"{_flag(key)} has a meaning only with {_flag(NEEDS[key])}")


def check_ground(said: Mapping[str, Given], *, why: str) -> None:
    """Of runs on Pollux's ground."""
    for key in _typed(said):
        if key in OF_ANOTHER_GROUND:
            raise BadInput(
                f"{_flag(key)} has no meaning on Pollux's ground, which says how long things take ({why}); "
                "--ground own takes your times"
            )


def check_models(said: Mapping[str, Given], *, measured: Sequence[str], plain: Sequence[str]) -> None:
    """Of trace files: what is asked only for the other kind of them."""
    for key in _typed(said):
        if key in ASSUMED and not plain:
            raise BadInput(f"{_flag(key)} has no meaning for jobs of measured models, as those of {measured[0]}")
        if key == "traces" and not measured:
            raise BadInput(f"--traces has no meaning here: the jobs of {plain[0]} have no measured models")


def _typed(said: Mapping[str, Given]) -> list[str]:
    return [key for key, given in said.items() if given.source.startswith("-")]


def _flag(key: str) -> str:
    return f"--{key.replace('_', '-')}"
