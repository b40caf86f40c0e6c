"""Kubeconfigs: how somebody gets to the API server, and shows who they are. One file each, in the cluster's folder."""

import base64
import json
import os
import ssl
from collections.abc import Sequence
from pathlib import Path

from .api import Object
from .certificates import Authority


class Users:
    """Writes kubeconfigs into `folder` for whoever the cluster's authority, or a token, says somebody is."""

    def __init__(self, folder: Path, authority: Authority) -> None:
        self.folder = folder
        self.folder.mkdir(exist_ok=True)
        self._authority = authority
        self.server = ""
        """The API server's address, once it is known."""

    def with_certificate(self, name: str, groups: Sequence[str] = ()) -> Path:
        signed = self._authority.client(name, groups)
        credentials = {"client-certificate-data": _base64(signed.certificate), "client-key-data": _base64(signed.key)}
        return self._write(name, credentials, "default")

    def with_token(self, name: str, token: str, namespace: str) -> Path:
        return self._write(name, {"token": token}, namespace)

    def trust(self, name: str, groups: Sequence[str]) -> ssl.SSLContext:
        """How a client in this process checks the server, and shows that it is this user."""
        signed = self._authority.client(name, groups)
        context = ssl.create_default_context(cadata=self._authority.certificate.decode())
        path = self.folder / f".{name}.pem"  # OpenSSL reads its own certificate from a file only
        try:
            write_secret(path, signed.certificate + signed.key)
            context.load_cert_chain(path)
        finally:
            path.unlink()
        return context

    def _write(self, name: str, credentials: Object, namespace: str) -> Path:
        cluster = {"server": self.server, "certificate-authority-data": _base64(self._authority.certificate)}
        settings = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": name,
            "clusters": [{"name": "shoal", "cluster": cluster}],
            "users": [{"name": name, "user": credentials}],
            "contexts": [{"name": name, "context": {"cluster": "shoal", "user": name, "namespace": namespace}}],
        }
        path = self.folder / name.replace(":", "-").removeprefix("system-")
        write_secret(path, json.dumps(settings, indent=2).encode() + b"\n")
        return path


def write_secret(path: Path, content: bytes) -> None:
    with open(path, "wb", opener=lambda file, flags: os.open(file, flags, 0o600)) as file:
        file.write(content)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
