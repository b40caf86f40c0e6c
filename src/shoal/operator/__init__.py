"""The operator: it turns ElasticJobs, ScalePlans and JobResources into Pods, and says why.

- `snapshot`: what is known of one job; `memory`: what the operator remembers of it, in the job's own status;
- `plan_job` (`plan`) decides, once per look, from `asks`, `grants`, `moves`, `members`, `masters` and `ending`; what is
  to be made stands in `objects` and `pods`, what people read in `status` and `verdicts`. All of that is pure;
- `reconcile` reads, asks `plan_job`, records the decision, then acts, through the port `Cluster` (`ports`);
- `operator` wakes the right jobs and works on several at once, while it leads.

Nothing here knows Kubernetes' API: `shoal.platforms.kubernetes.cluster` is the port's other side.
"""
