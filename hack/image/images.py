"""Images for the test cluster's real node, made of this machine's files: nothing is pulled, nothing is built twice.

- Shoal's own, as `deploy/Dockerfile` makes it for people: the bundle at /shoal, glibc, a user without rights.
- etcd, as a TrainingJob's master keeps its state in.
- A user's, with glibc and a shell and no Python at all: what an agent must get on with.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from hack.image.bundle import OF_GLIBC, bundle, compiled
from hack.kube.harness.images import Image, busybox

SHOAL = "localhost/shoal:test"
NO_PYTHON = "localhost/no-python:test"
ETCD = "localhost/etcd:test"
USER = "shoal:x:65532:65532:shoal:/:/bin/false\n"
NSS = ("libnss_files.so", "libnss_dns.so")
"""How names are looked up; in newer glibc they are part of libc."""


def shoal_image(folder: Path) -> Image:
    """Shoal's image. The bundle is made in `folder`, or taken from there with Shoal's own modules as they are now."""
    if (folder / "bin" / "shoal").exists():
        _refresh(folder)
    else:
        bundle(folder)
    files: dict[str, bytes | Path] = {
        f"shoal/{path.relative_to(folder)}": path for path in sorted(folder.rglob("*")) if path.is_file()
    }
    return Image(
        name=SHOAL,
        files={**files, **glibc(), "etc/passwd": USER.encode(), "etc/group": b"shoal:x:65532:\n"},
        folders=("target", "var/run"),
    )


def no_python_image() -> Image:
    """A shell, glibc, and nothing else."""
    plain = busybox()
    return Image(name=NO_PYTHON, files={**plain.files, **glibc()}, links=plain.links)


def etcd_image() -> Image:
    """etcd as its authors build it; built here once."""
    build = Path(__file__).parents[1] / "etcd" / "build"
    found = subprocess.run([build], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    return Image(name=ETCD, files={"bin/etcd": Path(found), **glibc()}, folders=("data",))


def glibc() -> dict[str, bytes | Path]:
    """The machine's own, at the paths where programs look for it."""
    said = subprocess.run(["/sbin/ldconfig", "-p"], check=True, capture_output=True, text=True)
    found = [Path(line.rpartition(" => ")[2]) for line in said.stdout.splitlines() if " => " in line]
    wanted = [path for path in found if path.name.startswith((*OF_GLIBC, *NSS)) and _is_for_us(path)]
    loader = Path("/lib64/ld-linux-x86-64.so.2")
    return {str(path).removeprefix("/"): path.resolve() for path in (*wanted, loader)}


def _is_for_us(library: Path) -> bool:
    """Whether it is of this machine's architecture, by its header."""
    return _machine(library) == _machine(Path(sys.executable))


def _machine(path: Path) -> bytes:
    with path.resolve().open("rb") as file:
        return file.read(20)[18:20]


def _refresh(folder: Path) -> None:
    """Copy Shoal's modules as they stand in the tree over those of the bundle."""
    import shoal

    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    target = folder / "lib" / version / "site-packages" / "shoal"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(Path(shoal.__file__).parent, target, ignore=shutil.ignore_patterns("__pycache__"))
    compiled(folder, version)
