"""Container images made of files at hand, with nothing but tarfile: no registry, no daemon, no build."""

import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

BUSYBOX = "localhost/busybox:1"
PAUSE = "localhost/pause:1"
"""Names that no registry could have: a missing image is an error at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """What is in an image: files by their path in it, each with its content or where that is; links; empty folders."""

    name: str
    files: Mapping[str, bytes | Path]
    links: Mapping[str, str] = field(default_factory=dict)
    folders: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()


def busybox() -> Image:
    """A shell and its friends. The folders are there for the machine's own to be mounted over them."""
    commands = subprocess.run(["/bin/busybox", "--list"], check=True, capture_output=True, text=True).stdout.split()
    return Image(
        name=BUSYBOX,
        files={
            "bin/busybox": Path("/bin/busybox"),
            "etc/passwd": b"root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n",
            "etc/group": b"root:x:0:\nnogroup:x:65534:\n",
        },
        links={f"bin/{command}": "busybox" for command in commands if command != "busybox"},
        folders=("lib", "lib64", "usr", "var"),
    )


def pause(program: Path) -> Image:
    return Image(name=PAUSE, files={"pause": program}, entrypoint=("/pause",))


def write_archive(image: Image, path: Path) -> None:
    """Write the image in the form that `docker save` has and `ctr images import` reads."""
    layer = _layer(image)
    settings = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/bin:/usr/bin:/usr/sbin"], "Entrypoint": list(image.entrypoint) or None},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [image.name], "Layers": ["layer.tar"]}]
    with tarfile.open(path, "w") as archive:
        for name, data in (
            ("manifest.json", json.dumps(manifest).encode()),
            ("config.json", json.dumps(settings).encode()),
            ("layer.tar", layer),
        ):
            _add(archive, tarfile.TarInfo(name), data)


def _layer(image: Image) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        temporary = _entry("tmp", tarfile.DIRTYPE, 0o1777)
        layer.addfile(temporary)
        for folder in sorted(
            {*image.folders, *(str(Path(path).parent) for path in (*image.files, *image.links))} - {"."}
        ):
            layer.addfile(_entry(folder, tarfile.DIRTYPE))
        for path, content in sorted(image.files.items()):
            _add(layer, _entry(path, tarfile.REGTYPE), content if isinstance(content, bytes) else content.read_bytes())
        for path, target in sorted(image.links.items()):
            link = _entry(path, tarfile.SYMTYPE)
            link.linkname = target
            layer.addfile(link)
    return buffer.getvalue()


def _entry(path: str, kind: bytes, mode: int = 0o755) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(path)
    entry.type, entry.mode = kind, mode
    return entry


def _add(archive: tarfile.TarFile, entry: tarfile.TarInfo, data: bytes) -> None:
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))
