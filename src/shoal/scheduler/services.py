"""Phase A, first half: Pods of online services get a host before any training does.

A service Pod goes to a host with room; else trainers above their jobs' least sizes make room; else whole jobs are put
back into the queue, the lowest weight first: a minimum is no protection against services. A Pod that would not fit on
any host even without training is ignored, and so does not hold up the cluster. While one has no room yet, or is so new
that it is just being bound, training does not grow; one that has room and is not bound for long waits for something
else, and only its room is kept.
"""

from collections import Counter
from collections.abc import Iterable

from shoal.scheduler.columns import Shape
from shoal.scheduler.decisions import Code, Nomination, Reason
from shoal.scheduler.planning import Round
from shoal.scheduler.reasons import amount
from shoal.scheduler.rows import NOTHING, Room, ServicePod
from shoal.scheduler.victims import Terms, make_room
from shoal.scheduler.view import NOWHERE, Search


def serve(plan: Round) -> ServicePod | None:
    """Find a host for every waiting service Pod. Returns one that training has to wait for, if there is any."""
    holds_up: ServicePod | None = None
    pods = _in_order(plan)
    alike = Counter(pod.each for pod in pods)
    for pod in pods:
        alike[pod.each] -= 1
        position, waits = _serve_one(plan, pod, alike[pod.each])
        if position == NOWHERE:
            continue
        if pod.nominated == plan.view.names[position]:
            plan.view.keep(position, pod.each)  # Kubernetes is clearing the host: what is there counts until it is gone
        else:
            plan.view.take(position, pod.each)
        plan.view.take_from_bare(position, pod.each)
        if waits and holds_up is None:
            holds_up = pod
    return holds_up


def _in_order(plan: Round) -> list[ServicePod]:
    floor = plan.settings.service_priority_floor
    services = [pod for pod in plan.snapshot.services if pod.priority >= floor]
    return sorted(services, key=lambda pod: (-pod.priority, pod.since, pod.namespace, pod.name))


def _serve_one(plan: Round, pod: ServicePod, alike: int) -> tuple[int, bool]:
    """The host's position, and whether training has to wait for this Pod. So many like it come after it."""
    view = plan.view
    nominated = view.position.get(pod.nominated or "", NOWHERE)
    if nominated != NOWHERE and _is_enough(view.bare_at(nominated), pod.each):
        return nominated, _holds_up(plan, pod, nominated)
    shape = Shape(pod.each, pod.pools)
    if not view.fits_bare(shape):
        _nominate(plan, pod, None, f"no open host has {amount(pod.each)} even without training, so it is ignored")
        return NOWHERE, False
    search = view.search(shape, leaves_cores=False)
    position = view.first_fit(search)
    if position != NOWHERE:
        _nominate(plan, pod, position, f"{amount(pod.each)} fit on {view.names[position]}")
        return position, _holds_up(plan, pod, position)
    position = _take_surplus(plan, pod, search, alike)
    if position == NOWHERE:
        position = _suspend_jobs(plan, pod, search)
    return position, position != NOWHERE


def _holds_up(plan: Round, pod: ServicePod, position: int) -> bool:
    """Its room there is not free yet, or it is so new that it is just being bound."""
    free = plan.view.free(position).minus(plan.view.coming.get(position, NOTHING))
    return not _is_enough(free, pod.each) or plan.now - pod.since < plan.settings.reserve_after


def _is_enough(free: Room, each: Room) -> bool:
    """What is not asked for does not matter."""
    return all(not wants or has >= wants for has, wants in zip(free, each, strict=True))


def _nominate(plan: Round, pod: ServicePod, position: int | None, reason: str) -> None:
    host = None if position is None else plan.view.names[position]
    plan.nominations.append(Nomination(namespace=pod.namespace, name=pod.name, host=host, reason=reason))


def _take_surplus(plan: Round, pod: ServicePod, search: Search, alike: int) -> int:
    position, taken = make_room(plan, search, Terms(), alike)
    if position == NOWHERE:
        return NOWHERE
    host = plan.view.names[position]
    for job in dict.fromkeys(job for job, _, _ in taken):
        text = f"service Pod {pod.namespace}/{pod.name} needs {amount(pod.each)} on {host}; key {plan.key(job):.4g}"
        plan.gives(job, Reason(code=Code.SERVICE, text=text), f"{pod.namespace}/{pod.name}")
    gone = sum(number for _, _, released in taken for _, number in released)
    _nominate(plan, pod, position, f"{gone} trainers leave {host} for it")
    return position


def _suspend_jobs(plan: Round, pod: ServicePod, search: Search) -> int:
    """Put back whole jobs until the Pod fits somewhere: the lowest weight first, then the largest key."""
    order = sorted(
        (job for job, n in enumerate(plan.n) if n > 0),
        key=lambda job: (int(plan.keys.weight[job]), -plan.key(job), -plan.keys.rank[job]),
    )
    freed: dict[int, Room] = {}
    asked: list[int] = []
    for job in order:
        asked.append(job)
        position = _first_enough(plan, search, freed, _held(plan, job))
        if position != NOWHERE:
            for victim in _needed(plan, search, position, asked):
                text = f"service Pod {pod.namespace}/{pod.name} needs {amount(pod.each)} on {plan.view.names[position]}"
                plan.gives(victim, Reason(code=Code.SERVICE, text=f"{text}, and no job is above its minimum there"),
                           f"{pod.namespace}/{pod.name}")  # fmt: skip
                plan.suspend(victim)
            _nominate(plan, pod, position, f"jobs leave {plan.view.names[position]} for it")
            return position
    _nominate(plan, pod, None, f"no host can be cleared for {amount(pod.each)}, so it is ignored")
    return NOWHERE


def _first_enough(plan: Round, search: Search, freed: dict[int, Room], held: Iterable[tuple[int, Room]]) -> int:
    """Add what a job holds to what was freed, and say where the Pod fits then."""
    for position, room in sorted(held):  # in whatever order its Pods were counted
        freed[position] = freed.get(position, NOTHING).plus(room)
        if plan.view.is_in(search.pools, position) and plan.view.fits_with(search, position, freed[position]):
            return position
    return NOWHERE


def _held(plan: Round, job: int) -> list[tuple[int, Room]]:
    """What the job has on the hosts in view."""
    row, position = plan.rows[job], plan.view.position
    held = [(where, NOTHING.plus(row.each, count)) for where, count in plan.places(job)]
    return held + [(position[name], room) for name, room in row.fixed_placed.items() if name in position]


def _needed(plan: Round, search: Search, position: int, asked: list[int]) -> list[int]:
    """Of these jobs, those without which the Pod would not fit there; the highest weight is spared first."""
    rooms = {job: _sum(plan, job, position) for job in asked}
    needed = [job for job in asked if rooms[job] != NOTHING]
    for job in reversed(needed[:]):
        rest = NOTHING
        for other in needed:
            if other != job:
                rest = rest.plus(rooms[other])
        if plan.view.fits_with(search, position, rest):
            needed.remove(job)
    return needed


def _sum(plan: Round, job: int, position: int) -> Room:
    total = NOTHING
    for where, room in _held(plan, job):
        if where == position:
            total = total.plus(room)
    return total
