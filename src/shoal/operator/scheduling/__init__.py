"""The cluster's scheduler in the operator: what all jobs ask for, held against what there is, once in a while.

- `facts`: what a job asks for and has been told, whatever its kind; `elastic` makes it of an ElasticJob;
- `ledger`: what Pods take of hosts and quotas, kept up to date Pod by Pod;
- `reading`: facts, ledger, hosts and quotas become the rows that a policy looks at. All of that is pure;
- `kept`: what a round takes over from the one before;
- `round`: one round on paper; `telling`: whom its outcome concerns;
- `settings`: the owner's choices, from one ConfigMap; `live`: those that hold;
- `loop`: one round after the other: read, ask the policy, put the allowances where the jobs' controllers find them.

The scheduler writes no job. It holds one `Allowance` for each in memory and wakes the job's controller, which writes
it into the job's status together with everything else, and acts. So a decision that was never written has never been
made, and an operator that is killed loses nothing: the next one reads the statuses and decides again.
"""
