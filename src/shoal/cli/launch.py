"""The glue of `shoal run`: options in, a master with its local nodes out; or one node of somebody else's master.

    shoal run ─┬─ Supervisor        holds the port, keeps a `shoal master` child alive
               ├─ LocalScaler       starts and ends `shoal agent` children
               ├─ Printer           owns the terminal
               └─ Registry entry    how other shells find the job

What is started is decided in `plan`; `host` and `join` start it, wait for the end, and leave nothing behind.
"""

import asyncio
import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from rich.console import Console

from shoal import agent
from shoal.agent.settings import AgentSettings
from shoal.cli import agent as agent_command
from shoal.cli import devices, registry, secret
from shoal.cli.addresses import (
    LOOPBACK,
    free_ports,
    listening,
    outward,
    port_in_use,
    reachable,
    resolves_to_loopback,
    towards,
)
from shoal.cli.invocation import Alone, HostEndpoint, Join
from shoal.cli.master import MasterConfig, Turn
from shoal.cli.master import words as master_words
from shoal.cli.output import Printer
from shoal.cli.plan import (
    OWNER_WAIT,
    Plan,
    default_name,
    endpoint_name,
    join_lines,
    node_environment,
    node_settings,
    open_ports_line,
    plan,
    usual_environment,
)
from shoal.cli.registry import Entry, JobRecord, JobResult, JobState, Registry, RunLine
from shoal.cli.resume import Resumption
from shoal.cli.supervisor import MasterCommand, NoMaster, Supervisor, fresh
from shoal.cli.torchrun import Address, RunOptions
from shoal.cli.view import decision_line, resize_line, settled, summary
from shoal.core.errors import BadInput, PlatformUnavailable, ShoalError
from shoal.core.exits import EXIT_DO_NOT_RESTART
from shoal.core.job import new_job
from shoal.core.job import view as view_of
from shoal.core.nodes import Node, Role
from shoal.core.view import ENDED, DecisionView, JobPhase, JobView
from shoal.platforms.local import LocalLaunch, LocalScaler
from shoal.wire.server import Listen, own_names
from shoal.wire.tls import certificate_from_secret, new_certificate
from shoal.wire.tokens import JobKeys, Purpose, token_uid


class PortTaken(BadInput):
    """The port is in use: another invocation may have been quicker."""


class _NotResumed(Exception):
    """No master could go on with the job's state; the text says why."""


# Hosting -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Door:
    """Where the master listens, and what opens it."""

    listen: Listen
    keys: JobKeys
    name: str
    address: str
    """At which the nodes of this machine are reached by their peers."""


def host(
    what: Alone | HostEndpoint,
    options: RunOptions,
    environment: Mapping[str, str],
    *,
    line: RunLine,
    resumption: Resumption | None = None,
) -> int:
    """Run a job from here to its end. Raises `PortTaken` before anything was started.

    `line` is what this job could be resumed with; `resumption` names the one that is resumed here.
    """
    jobs = Registry(registry.home(environment))
    door = _door(what, options, environment, uid=None if resumption is None else resumption.entry.record.uid)
    if port_in_use(Address(host=door.listen.host, port=door.listen.port)):
        raise PortTaken(f"port {door.listen.port} on {door.listen.host} is in use: choose another, or 0 for any")
    job = plan(
        what,
        options,
        name=door.name,
        uid=door.keys.uid,
        machine=devices.look(environment),
        python=agent_command.training_python(environment),
    )
    jobs.check_free(job.spec.name)
    if resumption is None and (lost := jobs.find(job.spec.name)) is not None and lost.state is JobState.LOST:
        print(f"shoal: a job named {job.spec.name} was lost; this is a new one (not --resume)", file=sys.stderr)
    console = _console(options)
    printer = Printer(
        stdout=sys.stdout.buffer, stderr=sys.stderr.buffer, console=console, now=lambda: datetime.now(UTC)
    )
    before = None if resumption is None else resumption.entry
    return asyncio.run(
        _Host(what, options, environment, job, door, jobs, printer, line, before, is_live=console is not None).run()
    )


def _door(what: Alone | HostEndpoint, options: RunOptions, environment: Mapping[str, str], *, uid: str | None) -> _Door:
    """`uid`: of a job that is resumed; it is the same job, with a new key."""
    assert options.program is not None
    if isinstance(what, HostEndpoint):
        name = endpoint_name(options)
        keys = JobKeys.new(uid or secret.job_uid(name, secrets.token_hex(6)))
        certificate = None
        if what.shared:
            shared = _shared_secret(options, environment)
            keys, certificate = secret.shared_keys(name, shared), certificate_from_secret(shared.encode())
    else:
        name = options.name or default_name(options.program.stem, secrets.token_hex(2))
        keys = JobKeys.new(uid or secret.job_uid(name, secrets.token_hex(6)))
        certificate = new_certificate() if what.invites else None
    listen_host = what.listen.host
    if isinstance(what, HostEndpoint) and what.shared and resolves_to_loopback(what.listen):
        # Many systems map their own name to 127.0.1.1; others reach it by another address.
        listen_host = "0.0.0.0"  # noqa: S104 - asked for by naming this machine as the endpoint, TLS and token on
    return _Door(
        listen=Listen(host=listen_host, port=what.listen.port or 0, certificate=certificate, names=own_names()),
        keys=keys,
        name=name,
        address=options.local_address or (LOOPBACK if certificate is None else reachable(listen_host)),
    )


class _Host:
    """One hosted job: from the open port to the last line."""

    def __init__(
        self,
        what: Alone | HostEndpoint,
        options: RunOptions,
        environment: Mapping[str, str],
        job: Plan,
        door: _Door,
        jobs: Registry,
        printer: Printer,
        line: RunLine,
        before: Entry | None,
        *,
        is_live: bool,
    ) -> None:
        """`before`: the entry of the job that is resumed."""
        self._line = line
        self._before = before
        self._what = what
        self._options = options
        self._environment = environment
        self._plan = job
        self._door = door
        self._jobs = jobs
        self._printer = printer
        self._is_live = is_live
        self._signals: list[signal.Signals] = []
        self._base: AgentSettings | None = None
        self._scaler = LocalScaler(self._launch, printer.training)
        self._sockets: tuple[socket.socket, ...] = ()
        self._supervisor: Supervisor | None = None
        self._tf_servers, self._tf_workers = self._tf_addresses()
        self._told_resize = 0
        self._told_decision: DecisionView | None = None

    async def run(self) -> int:
        self._sockets = listening(Address(host=self._door.listen.host, port=self._door.listen.port))
        try:
            return await self._run(self._enter())
        finally:
            for each in self._sockets:
                each.close()

    async def _run(self, entry: Entry) -> int:
        self._base = node_settings(
            self._options,
            job=self._plan.spec.name,
            nproc=self._plan.spec.nproc,
            master=self._url,
            token=self._door.keys.token(Purpose.AGENT),
            fingerprint=self._fingerprint,
            address=self._door.address,
            log_dir=Path(entry.record.logs),
            python=agent_command.training_python(self._environment),
            host=socket.gethostname(),
            environment=self._environment,
        )
        self._supervisor = supervisor = self._make_supervisor(entry)
        self._printer.start()
        handler = _NoteHandler(self._printer)
        logging.getLogger().addHandler(handler)
        try:
            self._introduce(entry)
            with self._signals_to(supervisor):
                view = await self._until_end(supervisor)
                entry = self._remember(entry, view)  # a signal that comes now must not lose how it ended
            self._printer.close((*summary(view, logs=entry.record.logs), *_how_to_go_on(entry, view)))
            return self._exit_code(view)
        except _NotResumed as exc:
            assert self._before is not None
            entry = entry.replaced(self._before.record)  # as if nobody had tried
            raise BadInput(f"job {entry.record.name} cannot be resumed: {exc}") from exc
        finally:
            logging.getLogger().removeHandler(handler)
            if entry.record.result is None and entry.record.pid == os.getpid():
                self._remember(entry, supervisor.view)
            self._printer.close()

    @property
    def _port(self) -> int:
        port: int = self._sockets[0].getsockname()[1]
        return port

    @property
    def _url(self) -> str:
        return self._door.listen.url(self._port)

    def _make_supervisor(self, entry: Entry) -> Supervisor:
        plan, listen, keys = self._plan, self._door.listen, self._door.keys
        certificate = listen.certificate
        config = MasterConfig(
            spec=plan.spec,
            settings=plan.settings,
            uid=keys.uid,
            install_key=keys.install_key,
            host=listen.host,
            port=self._port,
            cert_pem=None if certificate is None else certificate.cert_pem,
            key_pem=None if certificate is None else certificate.key_pem,
            fingerprint=self._fingerprint,
            names=listen.names,
            nodes=plan.nodes,
            awaited_joins=plan.awaited_joins,
        )
        path = entry.write_private("master.json", msgspec.json.encode(config))
        sockets = tuple(each.fileno() for each in self._sockets)
        store = self._options.store or str(entry.state_directory)
        now = datetime.now(UTC)
        job, _ = new_job(plan.spec, plan.settings, nodes=plan.nodes, awaited_joins=plan.awaited_joins, now=now)
        return Supervisor(
            MasterCommand(
                argv=(sys.executable, "-m", "shoal", *master_words(path, store, sockets)),
                environment=self._environment,
                sockets=sockets,
            ),
            self._scaler,
            url=self._url,
            token=keys.token(Purpose.ADMIN),
            fingerprint=self._fingerprint,
            first=view_of(job, now),
            seen=self._show,
            note=self._printer.note,
            begin=Turn.NEW if self._before is None else Turn.RESUME,
        )

    @property
    def _fingerprint(self) -> str | None:
        certificate = self._door.listen.certificate
        return None if certificate is None else certificate.fingerprint

    def _enter(self) -> Entry:
        """Write the job down, so that others find it."""
        spec = self._plan.spec
        own_logs = self._options.log_dir is None
        pid = os.getpid()
        started = registry.process_started(pid)
        assert started is not None
        record = JobRecord(
            name=spec.name,
            uid=spec.uid,
            pid=pid,
            pid_started=started,
            started=datetime.now(UTC),
            command=spec.command,
            logs="" if own_logs else str(Path(self._options.log_dir or "", spec.name).absolute()),
            endpoint=str(self._options.endpoint) if isinstance(self._what, HostEndpoint) else None,
            url=self._url,
            fingerprint=self._fingerprint,
            line=self._line,
        )
        tokens = {purpose.value: self._door.keys.token(purpose) for purpose in Purpose}
        if self._before is None:
            return self._jobs.claim(record, tokens, own_logs=own_logs)
        before = self._before.record
        record = msgspec.structs.replace(
            record,
            line=before.line,  # what was typed now is for this time only: it may turn out to be wrong
            started=before.started,
            logs=record.logs or str(self._before.path / "logs"),
            resumed=before.resumed + 1,
        )
        return self._jobs.reclaim(self._before, record, tokens)

    def _introduce(self, entry: Entry) -> None:
        spec = self._plan.spec
        self._printer.note(f"job {spec.name}: shoal ps, scale, logs and stop work on it; logs in {entry.record.logs}")
        if spec.ps is not None and (interfaces := outward()):
            self._printer.note(open_ports_line(interfaces))
        if isinstance(self._what, Alone) and self._what.invites:
            for line in join_lines(
                Address(host=self._door.address, port=self._port),
                fingerprint=self._fingerprint or "",
                token_file=str(entry.token_path(Purpose.AGENT)),
                nproc=spec.nproc,
            ):
                self._printer.note(line)

    def _launch(self, node: Node) -> LocalLaunch:
        """How a node is started on this machine."""
        base = self._base
        assert base is not None
        settings = replace(
            base,
            node=node.id,
            incarnation=node.incarnation,
            seat=node.seat,
            tf_workers=self._tf_workers,
            tf_servers=self._tf_servers,
        )
        return LocalLaunch(
            argv=(sys.executable, "-m", "shoal", "agent", *agent_command.words(settings)),
            env={
                **usual_environment(self._plan.spec),
                **self._environment,
                **self._place(node),
                agent_command.TOKEN: settings.token,
            },
        )

    def _tf_addresses(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Of all servers and all workers that there will ever be, for scripts that only read TF_CONFIG."""
        servers, most = self._options.servers, self._plan.spec.max_nodes
        if servers is None or not servers.tf_config:
            return (), ()
        addresses = tuple(f"{LOOPBACK}:{port}" for port in free_ports(servers.max + most))
        return addresses[: servers.max], addresses[servers.max :]

    def _place(self, node: Node) -> Mapping[str, str]:
        """What a node's processes are told of the place it has. Who does not train has no GPU."""
        shares, spec = self._plan.shares, self._plan.spec
        role = node_environment(spec, node.role)
        if node.role in (Role.PS, Role.EVALUATOR):
            return {**role, "CUDA_VISIBLE_DEVICES": ""}
        if node.role is Role.CHIEF:
            return role
        if node.seat >= len(shares):
            raise PlatformUnavailable(f"{node.id}: the GPUs of this machine are enough for {len(shares)} nodes only")
        return {**shares[node.seat].environment, **role}

    # While it runs ---------------------------------------------------------------------------------------

    @contextmanager
    def _signals_to(self, supervisor: Supervisor) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in self._options.signals:
            loop.add_signal_handler(number, self._signalled, number, supervisor)
        try:
            yield
        finally:
            for number in self._options.signals:
                loop.remove_signal_handler(number)

    async def _until_end(self, supervisor: Supervisor) -> JobView:
        try:
            return await supervisor.run()
        except NoMaster as exc:
            reason = str(exc)
            if self._before is not None and not supervisor.has_begun:
                raise _NotResumed(reason) from exc
            return replace(supervisor.view, phase=JobPhase.FAILED, reason=reason, ended=datetime.now(UTC), exit_code=1)

    def _show(self, view: JobView) -> None:
        if self._is_live:
            self._printer.show(view)
            return
        for decision in fresh(view.decisions, self._told_decision):
            self._printer.note(decision_line(decision))
            self._told_decision = decision
        for resize in settled(view.resizes, after=self._told_resize):
            self._printer.note(resize_line(resize))
            self._told_resize = resize.generation

    def _signalled(self, number: signal.Signals, supervisor: Supervisor) -> None:
        self._signals.append(number)
        match len(self._signals):
            case 1:
                grace = self._options.grace
                self._printer.note(f"{number.name}: stopping within {grace:g} s; once more kills at once")
                supervisor.stop(f"{number.name} to shoal run")
            case 2:
                self._printer.note(f"{number.name} again: killing everything")
                supervisor.stop(f"{number.name} to shoal run, twice", grace_seconds=0.0)
            case _:
                # The nodes die with their parent: the kernel sees to it.
                os._exit(128 + number)

    # The end ---------------------------------------------------------------------------------------------

    def _remember(self, entry: Entry, view: JobView) -> Entry:
        is_over = view.phase in ENDED
        result = JobResult(
            phase=(view.phase if is_over else JobPhase.FAILED).value,
            exit_code=self._exit_code(view),
            reason=view.reason if is_over else "shoal run itself failed",
            ended=view.ended or datetime.now(UTC),
        )
        entry.keep_state(view)
        return entry.updated(result=result)

    def _exit_code(self, view: JobView) -> int:
        if view.phase is JobPhase.SUCCEEDED:
            return 0
        if view.phase is JobPhase.STOPPED and self._signals:
            return 128 + self._signals[0]
        return view.exit_code or 1


def _how_to_go_on(entry: Entry, view: JobView) -> tuple[str, ...]:
    """A job that got somewhere and did not come to its end can go on from there."""
    if view.phase is JobPhase.SUCCEEDED or (view.step is None and not view.data) or not entry.can_resume:
        return ()
    return (f"to go on from there: shoal run --resume {entry.record.name}",)


class _NoteHandler(logging.Handler):
    """Warnings of all parts go where the job's other words go."""

    def __init__(self, printer: Printer) -> None:
        super().__init__(level=logging.WARNING)
        self._printer = printer

    def emit(self, record: logging.LogRecord) -> None:
        self._printer.note(self.format(record))


def _console(options: RunOptions) -> Console | None:
    """A console for the live view, or None for plain lines."""
    if options.plain or not sys.stdout.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        return None
    return Console(highlight=False)


# Joining -------------------------------------------------------------------------------------------------


def join(what: Join, options: RunOptions, environment: Mapping[str, str]) -> int:
    """Be one node of a job whose master is elsewhere, to its end. The exit code is the agent's."""
    found = _find_master(what, options, environment)
    machine = devices.look(environment)
    share = devices.split(machine, nproc=options.nproc, nodes=1, seats=1)[0]
    settings = node_settings(
        options,
        job=found.name,
        nproc=share.nproc,
        master=found.url,
        token=found.token,
        fingerprint=found.fingerprint,
        address=options.local_address or (LOOPBACK if what.on_loopback else towards(what.master)),
        log_dir=Path(options.log_dir, found.name).absolute() if options.log_dir else None,
        python=agent_command.training_python(environment),
        host=socket.gethostname(),
        environment={**environment, **share.environment},
        checkpoint_dir=options.checkpoint_dir,
    )
    code = asyncio.run(agent.run(settings))
    # To whoever supervises an agent 76 means that another try cannot help; to a person it is simply a failure.
    return 1 if code == EXIT_DO_NOT_RESTART else code


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    name: str
    url: str
    token: str
    fingerprint: str | None


def _find_master(what: Join, options: RunOptions, environment: Mapping[str, str]) -> _Found:
    if options.join is not None:
        token = secret.given_token(options.token_file, environment, wanted_for=f"--join {what.master}")
        if options.fingerprint is None:
            raise BadInput(f"--join {what.master} needs --fingerprint: the host of the job prints it")
        url, fingerprint = f"https://{what.master}", options.fingerprint
        return _Found(name=secret.job_name(token_uid(token)), url=url, token=token, fingerprint=fingerprint)
    if what.shared:
        shared = _shared_secret(options, environment)
        name = endpoint_name(options)
        return _Found(
            name=name,
            url=f"https://{what.master}",
            token=secret.shared_keys(name, shared).token(Purpose.AGENT),
            fingerprint=certificate_from_secret(shared.encode()).fingerprint,
        )
    entry = _wait_for_owner(what.master, options, Registry(registry.home(environment)))
    assert entry.record.url is not None
    return _Found(
        name=entry.record.name,
        url=entry.record.url,
        token=entry.token(Purpose.AGENT),
        fingerprint=entry.record.fingerprint,
    )


def _wait_for_owner(endpoint: Address, options: RunOptions, jobs: Registry) -> Entry:
    """The local job that owns a loopback endpoint; its record says how to get in."""
    same = frozenset(
        str(Address(host=host, port=endpoint.port)) for host in (endpoint.host, "localhost", LOOPBACK, "::1")
    )
    patience = options.pending_timeout or OWNER_WAIT
    until = time.monotonic() + patience
    while (entry := jobs.by_endpoint(same)) is None:
        if time.monotonic() > until:
            raise ShoalError(
                f"no job of yours owns {endpoint} after {patience:g} s: is its `shoal run` started, "
                f"by the same user and with the same SHOAL_HOME ({jobs.home})?"
            )
        time.sleep(0.05)
    return entry


def _shared_secret(options: RunOptions, environment: Mapping[str, str]) -> str:
    """The secret that all invocations at an endpoint share."""
    wanted_for = f"{options.endpoint} is open to other machines, so every invocation (with one secret for all of them)"
    return secret.given_token(options.token_file, environment, wanted_for=wanted_for)
