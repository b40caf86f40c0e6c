"""`shoal master --kubernetes` beside a cluster: a kubeconfig (`KUBECONFIG`) stands for the files of a Pod."""

import asyncio
import logging
import os
import sys
from pathlib import Path

from shoal.cli.master_pod import place_of, run
from shoal.platforms.kubernetes.config import load

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
access = load([Path(os.environ["KUBECONFIG"])], None, environment=os.environ)
sys.exit(asyncio.run(run(place_of(os.environ), access)))
