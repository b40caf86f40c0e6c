"""`deploy/install.yaml`: the chart with its defaults, for people who install with kubectl alone. Made by Helm.

python tools/install_yaml.py            say whether it is up to date (exit code 1: it is not)
python tools/install_yaml.py --write    bring it up to date (wants helm: on the PATH, or built by hack/kube/build)

Its first lines hold a digest of the chart, so that whoever has no Helm can tell as well.
"""

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "deploy" / "chart"
INSTALL = ROOT / "deploy" / "install.yaml"
NAMESPACE = "shoal-system"
OLDEST = "1.30.0"
"""The oldest Kubernetes that the chart is for."""
HEAD = """\
# Shoal with the chart's defaults: kubectl apply --server-side -f install.yaml
# Generated from deploy/chart by `python tools/install_yaml.py --write`; change the chart, not this file.
# Chart: sha256:{digest}
---
apiVersion: v1
kind: Namespace
metadata:
  name: {namespace}
  labels:
    app.kubernetes.io/name: shoal
    app.kubernetes.io/part-of: shoal
    pod-security.kubernetes.io/enforce: restricted
"""


def main(words: Sequence[str]) -> int:
    if "--write" not in words:
        if is_fresh():
            return 0
        sys.stdout.write(f"{INSTALL.relative_to(ROOT)} is out of date: python tools/install_yaml.py --write\n")
        return 1
    INSTALL.write_text(rendered(helm()), encoding="utf-8")
    sys.stdout.write(f"{INSTALL.relative_to(ROOT)} brought up to date\n")
    return 0


def is_fresh() -> bool:
    """Whether the file was made from the chart as it is now."""
    return INSTALL.is_file() and f"# Chart: sha256:{digest()}\n" in INSTALL.read_text(encoding="utf-8")


def digest() -> str:
    """Of every file of the chart, names and contents."""
    whole = hashlib.sha256()
    for path in sorted(each for each in CHART.rglob("*") if each.is_file()):
        content = path.read_bytes()
        whole.update(f"{path.relative_to(CHART).as_posix()}\0{len(content)}\0".encode())
        whole.update(content)
    return whole.hexdigest()


def helm() -> Path:
    found = shutil.which("helm")
    if found is not None:
        return Path(found)
    sys.path.insert(0, str(ROOT))
    from hack.kube.harness.parts import built

    return built("helm") / "helm"


def rendered(program: Path) -> str:
    command = [program, "template", "shoal", CHART, f"--namespace={NAMESPACE}", f"--kube-version={OLDEST}"]
    made = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    lines = (line for line in made.splitlines() if line.strip() != "app.kubernetes.io/managed-by: Helm")
    return HEAD.format(digest=digest(), namespace=NAMESPACE) + "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
