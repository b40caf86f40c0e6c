"""Kubeconfig files, and the files a Pod finds: from either, an `Access`.

    access = load([Path.home() / ".kube" / "config"], environment=os.environ)
    access = in_cluster(environment=os.environ)

Nothing here reads the environment: who calls does, and says where files are and which variables there are (for
`HTTPS_PROXY`, and for exec plug-ins, which inherit them). Files are merged as kubectl merges them: the first one to
name a cluster, user or context wins, and so does the first `current-context`. Paths in a file are relative to it.

What is wrong is said with the file, the entry and the field.
"""

import base64
import binascii
import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import yaml

from shoal.core.errors import BadInput
from shoal.platforms.kubernetes.access import Access, Anonymous, Certificate, Credentials, Identity
from shoal.platforms.kubernetes.credentials import Exec, Files, Fixed, Plugin, basic, impersonating

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class _Entry(msgspec.Struct, frozen=True, rename="kebab"):
    pass


class _Cluster(_Entry, frozen=True, rename="kebab"):
    server: str = ""
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    insecure_skip_tls_verify: bool = False
    tls_server_name: str | None = None
    proxy_url: str | None = None


class _ExecVariable(_Entry, frozen=True):
    name: str
    value: str


class _Exec(msgspec.Struct, frozen=True, rename="camel"):
    command: str
    api_version: str
    args: list[str] | None = None
    env: list[_ExecVariable] | None = None
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = "IfAvailable"


class _User(_Entry, frozen=True, rename="kebab"):
    token: str | None = None
    token_file: str | None = msgspec.field(default=None, name="tokenFile")
    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    username: str | None = None
    password: str | None = None
    exec: _Exec | None = None
    auth_provider: dict[str, Any] | None = None
    as_: str | None = msgspec.field(default=None, name="as")
    as_groups: list[str] | None = None
    as_uid: str | None = None


class _Context(_Entry, frozen=True):
    cluster: str = ""
    user: str = ""
    namespace: str | None = None


class _NamedCluster(_Entry, frozen=True):
    name: str
    cluster: _Cluster = _Cluster()


class _NamedUser(_Entry, frozen=True):
    name: str
    user: _User | None = None


class _NamedContext(_Entry, frozen=True):
    name: str
    context: _Context = _Context()


class _File(_Entry, frozen=True, rename="kebab"):
    current_context: str | None = None
    clusters: list[_NamedCluster] | None = None
    users: list[_NamedUser] | None = None
    contexts: list[_NamedContext] | None = None


@dataclass(frozen=True, slots=True)
class _From:
    """Something, and the file it stands in: its relative paths are that file's."""

    path: Path
    what: Any

    def file(self, name: str) -> Path:
        return self.path.parent / name


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """One or more files, merged."""

    paths: tuple[Path, ...]
    current: str | None
    clusters: Mapping[str, _From]
    users: Mapping[str, _From]
    contexts: Mapping[str, _From]

    def access(self, context: str | None = None, *, environment: Mapping[str, str]) -> Access:
        """What a context (the current one if None) comes down to. Raises `BadInput`."""
        name = context or self.current
        where = " and ".join(str(path) for path in self.paths)
        if not name:
            raise BadInput(f"{where}: no current-context is set; choose one of: {_names(self.contexts)}")
        found = self.contexts.get(name)
        if found is None:
            raise BadInput(f"{where}: there is no context {name!r}; there are: {_names(self.contexts)}")
        cluster = self.clusters.get(found.what.cluster)
        if cluster is None or not cluster.what.server:
            raise BadInput(
                f"{found.path}: context {name!r} names the cluster {found.what.cluster!r}, which has no server"
            )
        user = self.users.get(found.what.user)
        if user is None and found.what.user:
            raise BadInput(f"{found.path}: context {name!r} names the user {found.what.user!r}, who is not there")
        return _access(cluster, user, found.what.namespace, environment)


def load(paths: Sequence[Path], context: str | None = None, *, environment: Mapping[str, str]) -> Access:
    """The access that a context of these files gives. Files that do not exist are passed over, as kubectl does."""
    return read(paths).access(context, environment=environment)


def read(paths: Sequence[Path]) -> Kubeconfig:
    """The files, merged. Raises `BadInput` when none of them exists, or one is not a kubeconfig."""
    files = [(path, _parse(path)) for path in paths if path.exists()]
    if not files:
        raise BadInput(f"no kubeconfig found at {', '.join(str(path) for path in paths) or 'no path at all'}")
    clusters: dict[str, _From] = {}
    users: dict[str, _From] = {}
    contexts: dict[str, _From] = {}
    for path, file in files:
        for cluster in file.clusters or ():
            clusters.setdefault(cluster.name, _From(path, cluster.cluster))
        for user in file.users or ():
            users.setdefault(user.name, _From(path, user.user or _User()))
        for context in file.contexts or ():
            contexts.setdefault(context.name, _From(path, context.context))
    current = next((file.current_context for _, file in files if file.current_context), None)
    return Kubeconfig(tuple(path for path, _ in files), current, clusters, users, contexts)


def in_cluster(*, environment: Mapping[str, str], folder: Path = SERVICE_ACCOUNT) -> Access:
    """What a Pod finds: the server in its environment, a token that rotates in its files. Raises `BadInput`."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise BadInput("not in a Pod: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set")
    token = folder / "token"
    if not token.exists():
        raise BadInput(f"{token} does not exist: does the Pod mount its service account's token?")
    authority, namespace = folder / "ca.crt", folder / "namespace"
    bracketed = f"[{host}]" if ":" in host else host
    return Access(
        server=f"https://{bracketed}:{port}",
        credentials=Files(token=token),
        authority=authority.read_bytes() if authority.exists() else None,
        namespace=namespace.read_text().strip() if namespace.exists() else "default",
    )


def _parse(path: Path) -> _File:
    try:
        data = yaml.safe_load(path.read_bytes())
    except OSError as exc:
        raise BadInput(f"cannot read the kubeconfig {path}: {exc.strerror}") from exc
    except (yaml.YAMLError, RecursionError) as exc:
        raise BadInput(f"{path} is not YAML: {' '.join(str(exc).split())[:300]}") from exc
    try:
        return msgspec.convert(data or {}, _File)
    except msgspec.ValidationError as exc:
        raise BadInput(f"{path} is not a kubeconfig: {exc}") from exc


def _access(cluster: _From, user: _From | None, namespace: str | None, environment: Mapping[str, str]) -> Access:
    said: _Cluster = cluster.what
    parts = urlsplit(said.server)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadInput(f"{cluster.path}: server must be https://HOST[:PORT], got {said.server!r}")
    authority = _data(cluster, "certificate-authority", said.certificate_authority, said.certificate_authority_data)
    return Access(
        server=said.server,
        credentials=_credentials(user, cluster, authority, environment) if user else Anonymous(),
        authority=authority,
        verify=not said.insecure_skip_tls_verify,
        server_name=said.tls_server_name or None,
        proxy=_proxy(cluster, said, environment),
        namespace=namespace or "default",
    )


def _credentials(user: _From, cluster: _From, authority: bytes | None, environment: Mapping[str, str]) -> Credentials:
    """In kubectl's order: certificates go with whatever else there is; of the rest, a token file comes before a token,
    both before a password, a plug-in last."""
    said: _User = user.what
    if said.auth_provider is not None:
        provider = said.auth_provider.get("name", "?")
        raise BadInput(f"{user.path}: auth-provider {provider!r} is no longer part of Kubernetes; use an exec plug-in")
    headers = impersonating(said.as_, said.as_groups or [], said.as_uid) if said.as_ else {}
    inline = _inline_certificate(user, said)
    if said.exec is not None and not (said.token or said.token_file):
        plugin = _plugin(user, said.exec, cluster.what, authority, environment)
        return Exec(plugin, headers=headers)
    if said.token and not said.token_file:
        headers |= {"Authorization": f"Bearer {said.token}"}
    elif said.username and not said.token_file:
        headers |= basic(said.username, said.password or "")
    if said.token_file is None and (inline is not None or said.client_certificate is None):
        return Fixed(Identity(headers, inline))
    in_files = inline is None and said.client_certificate is not None and said.client_key is not None
    return Files(
        token=user.file(said.token_file) if said.token_file else None,
        certificate=user.file(said.client_certificate) if in_files and said.client_certificate else None,
        key=user.file(said.client_key) if in_files and said.client_key else None,
        headers=headers,
        inline=inline,
    )


def _inline_certificate(user: _From, said: _User) -> Certificate | None:
    """The client certificate, unless both parts are files: those are read again when they change."""
    has_certificate = said.client_certificate or said.client_certificate_data
    has_key = said.client_key or said.client_key_data
    if bool(has_certificate) != bool(has_key):
        missing = "client-key" if has_certificate else "client-certificate"
        raise BadInput(f"{user.path}: the user has no {missing}: a certificate and its key go together")
    if not has_certificate or not (said.client_certificate_data or said.client_key_data):
        return None
    certificate = _data(user, "client-certificate", said.client_certificate, said.client_certificate_data)
    key = _data(user, "client-key", said.client_key, said.client_key_data)
    assert certificate is not None
    assert key is not None
    return Certificate(certificate, key)


def _plugin(
    user: _From, said: _Exec, cluster: _Cluster, authority: bytes | None, environment: Mapping[str, str]
) -> Plugin:
    if said.interactive_mode == "Always":
        raise BadInput(f"{user.path}: the exec plug-in {said.command} wants a terminal, and there is none here")
    command = said.command
    if "/" in command and not command.startswith("/"):
        command = str(user.file(command))
    info: dict[str, Any] = {"server": cluster.server, "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify}
    if authority is not None:
        info["certificate-authority-data"] = base64.b64encode(authority).decode()
    if cluster.tls_server_name:
        info["tls-server-name"] = cluster.tls_server_name
    return Plugin(
        argv=(command, *(said.args or ())),
        api_version=said.api_version,
        environment={**environment, **{each.name: each.value for each in said.env or ()}},
        install_hint=said.install_hint,
        cluster=info if said.provide_cluster_info else None,
    )


def _data(found: _From, field: str, file: str | None, data: str | None) -> bytes | None:
    """What stands in the file itself (base64), or in another one."""
    if data:
        try:
            return base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError) as exc:
            raise BadInput(f"{found.path}: {field}-data is not base64") from exc
    if not file:
        return None
    try:
        return found.file(file).read_bytes()
    except OSError as exc:
        raise BadInput(f"{found.path}: cannot read {field} {found.file(file)}: {exc.strerror}") from exc


def _proxy(cluster: _From, said: _Cluster, environment: Mapping[str, str]) -> str | None:
    if said.proxy_url:
        if urlsplit(said.proxy_url).scheme not in ("http", "https"):
            raise BadInput(f"{cluster.path}: proxy-url must be http or https, got {said.proxy_url!r}")
        return said.proxy_url
    return proxy_for(said.server, environment)


def proxy_for(server: str, environment: Mapping[str, str]) -> str | None:
    """The proxy that the usual variables ask for, if any: `HTTPS_PROXY`, `HTTP_PROXY`, except for `NO_PROXY`."""
    parts = urlsplit(server)
    name = f"{parts.scheme}_proxy"
    proxy = environment.get(name.upper()) or environment.get(name)
    host = (parts.hostname or "").lower()
    if not proxy or _is_loopback(host):
        return None
    exempt = environment.get("NO_PROXY") or environment.get("no_proxy") or ""
    if any(_is_exempt(host, parts.port, each.strip().lower()) for each in exempt.split(",")):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_exempt(host: str, port: int | None, rule: str) -> bool:
    """One entry of NO_PROXY: `*`, a name and all below it, an address, a network; maybe with a port."""
    if not rule:
        return False
    if rule == "*":
        return True
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(rule, strict=False)
    except ValueError:
        pass
    name, _, wanted_port = rule.partition(":")
    if wanted_port and wanted_port != str(port or 443):
        return False
    name = name.removeprefix("*").removeprefix(".")
    return host == name or host.endswith("." + name)


def _names(entries: Mapping[str, _From]) -> str:
    return ", ".join(sorted(entries)) or "none"
