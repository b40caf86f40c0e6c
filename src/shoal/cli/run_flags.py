"""Every flag of `shoal run`: torchrun's, in its words, and ours. The one place that knows names, defaults and help."""

from shoal.cli.flags import DEFAULT_SIGNALS, Flag

DEFAULT_MASTER_PORT = 29500
"""torchrun's for `--master-addr`."""
DEFAULT_ENDPOINT_PORT = 29400
"""torchrun's for `--rdzv-endpoint` without a port."""
DEFAULT_MAX_RESTARTS = 3
DEFAULT_LAST_CALL = 3.0
DEFAULT_GRACE = 30.0
"""Seconds, as torchrun's shutdown time-out: time for a checkpoint, not for a coffee."""

DEFAULT_KEEP = 3
"""Checkpoints: the newest may turn out to be damaged."""
DEFAULT_CHECKPOINT_SECONDS = 600.0
"""Between two checkpoints of a job with parameter servers: what is lost with a server at most."""
DEFAULT_AUTOSCALE_SECONDS = 30
"""Between two looks at a job that sizes itself. Shorter samples of its speed have more noise in them."""

SIZE, SERVERS, COMMAND, RECOVERY, CHECKPOINTS, NODES, OUTPUT, JOINING, COMPATIBILITY = (
    "Size",
    "Parameter servers",
    "What to run",
    "Failures and the end",
    "Checkpoints of jobs with the SDK",
    "Several machines, as in torchrun",
    "Output",
    "Joining by invitation",
    "Accepted for torchrun's sake",
)

# fmt: off
FLAGS: tuple[Flag, ...] = (
    Flag(name="nnodes", metavar="N|MIN:MAX", default="1", group=SIZE,
         help="Nodes of the job. With a range training goes on while at least MIN are there."),
    Flag(name="nproc-per-node", metavar="N|auto|cpu|gpu", default="1", group=SIZE,
         help="Training processes of each node. auto: one for each of its GPUs, or cores where there are none."),
    Flag(name="agents", metavar="K", group=SIZE,
         help="Nodes to start on this machine now, default MAX. `shoal scale` changes it later."),
    Flag(name="autoscale", group=SIZE,
         help="Find the best number of nodes between MIN and MAX while training; starts with MIN, or --agents."),
    Flag(name="autoscale-every", metavar="SECONDS", default=str(DEFAULT_AUTOSCALE_SECONDS), group=SIZE,
         help="How often --autoscale looks, and how long one sample of the job's speed takes; even, 4 to 300."),
    Flag(name="node-unit", metavar="N", default="1", group=SIZE,
         help="A world has a multiple of N nodes."),
    Flag(name="standalone", group=SIZE,
         help="All on this machine, whatever the flags about endpoints say. The default without them."),
    Flag(name="name", metavar="NAME", group=SIZE,
         help="The job's name for `shoal ps`, `scale`, `logs` and `stop`. Default: the script's, with a suffix."),

    Flag(name="strategy", metavar="allreduce|ps", default="allreduce", group=SERVERS,
         help="ps: workers train by themselves on a model that parameter servers hold (shoal.tensorflow)."),
    Flag(name="ps", metavar="N|MIN:MAX", default="1", group=SERVERS,
         help="Parameter servers of a job with --strategy ps, MIN at first. `shoal scale` changes it later."),
    Flag(name="evaluator", group=SERVERS,
         help="One more process scores every checkpoint. Training never waits for it."),
    Flag(name="no-ps-spare", group=SERVERS,
         help="Keep no second process ready beside each server: it costs memory, and saves an import when one dies."),
    Flag(name="tf-config", group=SERVERS,
         help="The script does not use shoal.tensorflow: it gets TF_CONFIG, and is restarted when the servers change."),
    Flag(name="checkpoint-every", metavar="SECONDS", default=f"{DEFAULT_CHECKPOINT_SECONDS:g}", group=SERVERS,
         help="How often the model is saved in --checkpoint-dir: what is trained again when a server is lost."),
    Flag(name="checkpoint-fuzzy", group=SERVERS,
         help="Workers train on while the model is saved: its parts are then not of one moment. Not the last one."),

    Flag(name="module", short="m", group=COMMAND,
         help="SCRIPT is a module, run as by `python -m`."),
    Flag(name="no-python", group=COMMAND,
         help="SCRIPT is a program of its own: no `python` in front."),
    Flag(name="run-path", group=COMMAND,
         help="Run SCRIPT with runpy.run_path. Wins over --no-python."),
    Flag(name="role", metavar="NAME", default="default", group=COMMAND,
         help="ROLE_NAME for the training processes."),

    Flag(name="max-restarts", metavar="N", default=str(DEFAULT_MAX_RESTARTS), group=RECOVERY,
         help="How often one rank may fail by its own fault before the job fails. 0: never."),
    Flag(name="hang-timeout", metavar="SECONDS", group=RECOVERY,
         help="Without a step for so long a job with the SDK hangs. Default: 10 median steps, at least 60 s. 0: off."),
    Flag(name="last-call", metavar="SECONDS", default=f"{DEFAULT_LAST_CALL:g}", group=RECOVERY,
         help="How long an incomplete world waits for stragglers after the last arrival."),
    Flag(name="grace", metavar="SECONDS", default=f"{DEFAULT_GRACE:g}", group=RECOVERY,
         help="Between SIGTERM and SIGKILL when processes are stopped."),
    Flag(name="shutdown-timeout", metavar="SECONDS", group=RECOVERY,
         help="torchrun's name for --grace."),
    Flag(name="signals-to-handle", metavar="LIST", default=DEFAULT_SIGNALS, group=RECOVERY,
         help="Signals that stop the job gracefully."),

    Flag(name="resume", metavar="NAME", group=RECOVERY,
         help="Go on with a job that was lost, stopped or failed, with its command line. Flags given beside it win."),
    Flag(name="store", metavar="DIR|URL", group=RECOVERY,
         help="Where the job's state is kept: a directory or etcd://HOST:PORT/PREFIX. Default: with the job's record."),

    Flag(name="checkpoint-dir", metavar="DIR|URL", group=CHECKPOINTS,
         help="Write what state.save() saves there, and start from the newest one. Default: memory only. "
         "With --strategy ps a directory; without it a lost server ends the job."),
    Flag(name="keep", metavar="N", default=str(DEFAULT_KEEP), group=CHECKPOINTS,
         help="How many checkpoints are left in --checkpoint-dir."),
    Flag(name="checkpoint-replica", group=CHECKPOINTS,
         help="Keep the newest one in a second node's memory too: then losing a node loses nothing that was saved."),
    Flag(name="checkpoint-memory", metavar="MIB", group=CHECKPOINTS,
         help="The most shared memory a node uses for checkpoints. Default: what is free."),

    Flag(name="rdzv-endpoint", metavar="HOST[:PORT]", group=NODES,
         help="This invocation is one node of many; the machine that owns the endpoint hosts the master."),
    Flag(name="master-addr", metavar="HOST", group=NODES,
         help="As --rdzv-endpoint; the node with --node-rank 0 owns it."),
    Flag(name="master-port", metavar="PORT", default=str(DEFAULT_MASTER_PORT), group=NODES,
         help="The port for --master-addr."),
    Flag(name="node-rank", metavar="N", default="0", group=NODES,
         help="Which node this is, for --master-addr. Ranks go by seniority all the same."),
    Flag(name="rdzv-id", metavar="ID", default="none", group=NODES,
         help="The job's id: TORCHELASTIC_RUN_ID, and what all nodes of one endpoint must agree on."),
    Flag(name="rdzv-conf", metavar="K=V,...", group=NODES,
         help="is_host, last_call_timeout, join_timeout and timeout are honoured."),
    Flag(name="rdzv-backend", metavar="NAME", default="static", group=NODES,
         help="Any of torchrun's; the rendezvous is Shoal's."),
    Flag(name="local-addr", metavar="ADDR", group=NODES,
         help="The address at which the other nodes reach this one."),

    Flag(name="log-dir", metavar="DIR", group=OUTPUT,
         help="Where the job's log directory goes. Default: with the job's record, see `shoal logs`."),
    Flag(name="redirects", short="r", metavar="STD", default="0", group=OUTPUT,
         help="Only to files, not to the terminal: 1 stdout, 2 stderr, 3 both; 0:1,1:2 by local rank."),
    Flag(name="tee", short="t", metavar="STD", default="0", group=OUTPUT,
         help="To files and to the terminal. Files are always written; this wins over --redirects."),
    Flag(name="local-ranks-filter", metavar="LIST", group=OUTPUT,
         help="Show only these local ranks on the terminal."),
    Flag(name="plain-output", group=OUTPUT,
         help="Lines instead of the live view, also on a terminal."),
    Flag(name="no-live", group=OUTPUT,
         help="The same."),

    Flag(name="listen", metavar="ADDR[:PORT]", group=JOINING,
         help="Let other machines join: TLS, and a line to paste there."),
    Flag(name="port", metavar="PORT", group=JOINING,
         help="The master's port. Default: a free one."),
    Flag(name="join", metavar="HOST:PORT", group=JOINING,
         help="Be one node of the job there. SCRIPT may be left out: the job's is used."),
    Flag(name="fingerprint", metavar="sha256:HEX", group=JOINING,
         help="The certificate to expect at --join."),
    Flag(name="token-file", metavar="FILE", group=JOINING,
         help="Holds the job's token; - is standard input. Without it: SHOAL_TOKEN."),

    Flag(name="monitor-interval", metavar="SECONDS", default="0.1", group=COMPATIBILITY,
         help="Not needed: exits are seen when they happen.", inert="exits are seen when they happen"),
    Flag(name="start-method", metavar="NAME", default="spawn", group=COMPATIBILITY,
         help="Not needed: processes are always started fresh.", inert="processes are always started fresh"),
    Flag(name="event-log-handler", metavar="NAME", default="null", group=COMPATIBILITY,
         help="Not supported: decisions stand in `shoal ps -o json`.", inert="torch's event handlers are not run"),
    Flag(name="logs-specs", metavar="NAME", group=COMPATIBILITY,
         help="Not supported: logs are Shoal's own.", inert="logs are Shoal's own"),
    Flag(name="numa-binding", metavar="MODE", group=COMPATIBILITY,
         help="Not supported.", inert="processes are not bound to NUMA nodes"),
    Flag(name="duplicate-stdout-filters", metavar="LIST", group=COMPATIBILITY,
         help="Not supported: `shoal logs` and grep.", inert="filter with `shoal logs` and grep"),
    Flag(name="duplicate-stderr-filters", metavar="LIST", group=COMPATIBILITY,
         help="Not supported: `shoal logs --stderr` and grep.", inert="filter with `shoal logs --stderr` and grep"),
    Flag(name="virtual-local-rank", group=COMPATIBILITY,
         help="Not supported: a process picks its GPU by LOCAL_RANK.", inert="a process picks its GPU by LOCAL_RANK"),
)
# fmt: on
