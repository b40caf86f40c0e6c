"""Node managers: what nodes a role has, and how a ResourcePlan becomes a ScalePlan for them. Parameter servers, whose
nodes hold state, have a manager of their own: `shoal.core.ps`."""
