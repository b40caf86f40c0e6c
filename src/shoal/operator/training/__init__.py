"""TrainingJobs in the operator: Kubernetes' own controllers make the Pods, we say how many and of what.

- `snapshot`: what is known of one job at one moment, and what the operator remembers of it in its status;
- `plan`: one pure decision about one job, of which `trainers` is the part that grows and shrinks;
- `objects`: the ReplicaSets, StatefulSet, Job, Services and Secret that are made of a spec;
- `status`: what people read; `recall`: the same on its way into the object and back;
- `reconcile`: read everything, decide once, record the decision, then act.
"""
