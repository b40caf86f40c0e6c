"""Where our own kinds are served. Objects come as plain JSON: one of odd shape must not spoil a whole list."""

from typing import Any

from shoal.platforms.kubernetes.objects import Kind

Json = dict[str, Any]

ELASTIC_JOBS: Kind[Json] = Kind(
    group="elastic.iml.github.io", version="v1alpha1", kind="ElasticJob", plural="elasticjobs", type=dict
)
SCALE_PLANS: Kind[Json] = Kind(
    group="elastic.iml.github.io", version="v1alpha1", kind="ScalePlan", plural="scaleplans", type=dict
)
JOB_RESOURCES: Kind[Json] = Kind(
    group="elastic.easydl.org", version="v1alpha1", kind="JobResource", plural="jobresources", type=dict
)
TRAINING_JOBS: Kind[Json] = Kind(
    group="paddlepaddle.org", version="v1", kind="TrainingJob", plural="trainingjobs", type=dict
)
