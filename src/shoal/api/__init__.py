"""The resources people and controllers write: ElasticJob, ScalePlan, JobResource, TrainingJob.

Four steps, each a module, each pure:

- **models** (`elasticjob`, `scaleplan`, `jobresource`, `trainingjob`): the fields as they are written;
- **rules** (`schema`, `rules`, `validation`): what may be written. The same schema and the same rules go into the
  CRDs, so the API server and `problems` say the same;
- **meaning** (`jobspec`, `trainingspec`): every accepted spelling becomes one value, with defaults;
- **CRDs** (`crds`): what is installed in a cluster, generated from the above.

Nothing here reads a clock, a file or a network, and nothing here imports the rest of Shoal.
"""

from shoal.api.elasticjob import ElasticJob
from shoal.api.jobresource import JobResource
from shoal.api.scaleplan import ScalePlan
from shoal.api.trainingjob import TrainingJob

__all__ = ["ElasticJob", "JobResource", "ScalePlan", "TrainingJob"]
