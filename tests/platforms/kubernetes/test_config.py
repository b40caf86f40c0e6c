"""Kubeconfig files and a Pod's own: what they come down to, and what is said about those that are wrong."""

import base64
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.errors import BadInput
from shoal.platforms.kubernetes.access import Certificate
from shoal.platforms.kubernetes.config import Kubeconfig, in_cluster, load, proxy_for, read
from shoal.platforms.kubernetes.credentials import Exec

Write = Callable[..., Path]


def a_config(
    user: dict[str, Any] | None = None, cluster: dict[str, Any] | None = None, name: str = "one", **context: Any
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": {"server": "https://api.example:6443", **(cluster or {})}}],
        "users": [{"name": name, "user": user or {}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, **context}}],
        "preferences": {},
    }


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def one(content: Any, name: str = "config") -> Path:
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
        return path

    return one


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def headers(path: Path, context: str | None = None) -> dict[str, str]:
    return dict((await load([path], context, environment={}).credentials.identity()).headers)


async def test_a_token_that_stands_in_the_file(write: Write) -> None:
    path = write(a_config({"token": "t0"}, namespace="train"))
    access = load([path], environment={})
    assert (access.server, access.namespace, access.verify) == ("https://api.example:6443", "train", True)
    assert await headers(path) == {"Authorization": "Bearer t0"}
    assert "t0" not in repr(access)


async def test_a_token_file_is_beside_the_kubeconfig_and_wins_over_a_token(write: Write) -> None:
    write("rotated\n", "token.txt")
    path = write(a_config({"token": "t0", "tokenFile": "token.txt"}))
    assert await headers(path) == {"Authorization": "Bearer rotated"}


async def test_a_certificate_inline_or_in_files(write: Write, tmp_path: Path) -> None:
    write("CERT", "a.crt")
    write("KEY", "a.key")
    inline = {"client-certificate-data": encoded(b"CERT"), "client-key-data": encoded(b"KEY")}
    files = {"client-certificate": "a.crt", "client-key": str(tmp_path / "a.key")}
    mixed = {"client-certificate": "a.crt", "client-key-data": encoded(b"KEY")}
    for user in (inline, files, mixed):
        identity = await load([write(a_config(user))], environment={}).credentials.identity()
        assert identity.certificate == Certificate(b"CERT", b"KEY")
        assert "KEY" not in repr(identity)


async def test_a_password_and_acting_as_another(write: Write) -> None:
    path = write(a_config({"username": "ann", "password": "p", "as": "bob", "as-groups": ["trainers"]}))
    assert await headers(path) == {
        "Authorization": f"Basic {encoded(b'ann:p')}",
        "Impersonate-User": "bob",
        "Impersonate-Group": "trainers",
    }


def test_how_the_server_is_trusted(write: Write) -> None:
    write("AUTHORITY", "ca.crt")
    cluster = {"certificate-authority": "ca.crt", "tls-server-name": "kubernetes", "insecure-skip-tls-verify": True}
    access = load([write(a_config(cluster=cluster))], environment={})
    assert (access.authority, access.server_name, access.verify) == (b"AUTHORITY", "kubernetes", False)
    data = {"certificate-authority-data": encoded(b"INLINE"), "certificate-authority": "not-read"}
    assert load([write(a_config(cluster=data))], environment={}).authority == b"INLINE"


async def test_a_context_can_be_chosen_and_the_first_file_wins(write: Write) -> None:
    first = write(a_config({"token": "t1"}), "first")
    both = a_config({"token": "t2"}, name="two")
    both["users"].append({"name": "one", "user": {"token": "overridden"}})
    second = write(both, "second")
    paths = [first, second, Path("/does/not/exist")]
    chosen = {name: load(paths, name, environment={}) for name in (None, "one", "two")}
    found = [dict((await access.credentials.identity()).headers)["Authorization"] for access in chosen.values()]
    assert found == ["Bearer t1", "Bearer t1", "Bearer t2"]


def test_an_exec_plugin_is_found_beside_the_kubeconfig_and_told_of_the_cluster(write: Write, tmp_path: Path) -> None:
    plugin = {
        "command": "bin/login",
        "args": ["--now"],
        "apiVersion": "client.authentication.k8s.io/v1",
        "env": [{"name": "REALM", "value": "sea"}],
        "provideClusterInfo": True,
        "interactiveMode": "Never",
    }
    access = load([write(a_config({"exec": plugin}))], environment={"PATH": "/bin", "REALM": "land"})
    assert isinstance(access.credentials, Exec)
    made = access.credentials.plugin
    assert made.argv == (str(tmp_path / "bin/login"), "--now")
    assert made.environment == {"PATH": "/bin", "REALM": "sea"}
    assert '"server":"https://api.example:6443"' in made.info()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param("a: [", "is not YAML", id="not-yaml"),
        pytest.param("[" * 1500, "is not YAML", id="too-deep"),
        pytest.param("- a", "is not a kubeconfig", id="a-list"),
        pytest.param({"clusters": [{"cluster": {}}]}, r"is not a kubeconfig.*name.*clusters\[0\]", id="without-a-name"),
        pytest.param({}, "no current-context is set", id="empty"),
        pytest.param({**a_config(), "current-context": "x"}, "no context 'x'; there are: one", id="unknown-context"),
        pytest.param({**a_config(), "clusters": []}, "cluster 'one', which has no server", id="unknown-cluster"),
        pytest.param({**a_config(), "users": []}, "user 'one', who is not there", id="unknown-user"),
        pytest.param(a_config(cluster={"server": "api:6443"}), "server must be https", id="server-without-a-scheme"),
        pytest.param(a_config(cluster={"proxy-url": "socks5://p"}), "proxy-url must be http", id="socks"),
        pytest.param(
            a_config(cluster={"certificate-authority": "no.crt"}), "cannot read certificate-authority", id="ca"
        ),
        pytest.param(a_config({"client-certificate": "a"}), "has no client-key", id="no-key"),
        pytest.param(a_config({"client-certificate-data": "!", "client-key-data": "!"}), "not base64", id="base64"),
        pytest.param(a_config({"auth-provider": {"name": "gcp"}}), "'gcp' is no longer part", id="auth-provider"),
        pytest.param(
            a_config({"exec": {"command": "x", "apiVersion": "v0"}}),
            "apiVersion 'v0' is not known",
            id="plugin-version",
        ),
        pytest.param(
            a_config(
                {
                    "exec": {
                        "command": "x",
                        "apiVersion": "client.authentication.k8s.io/v1",
                        "interactiveMode": "Always",
                    }
                }
            ),
            "wants a terminal",
            id="interactive-plugin",
        ),
    ],
)
def test_what_is_wrong_is_said(write: Write, content: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        load([write(content)], environment={})


def test_no_file_at_all_is_said_with_where_it_was_looked_for() -> None:
    with pytest.raises(BadInput, match="no kubeconfig found at /does/not/exist"):
        read([Path("/does/not/exist")])


WORDS = st.sampled_from(
    ["clusters", "users", "contexts", "name", "user", "cluster", "context", "server", "token", "exec"]
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(WORDS, x)
)


@settings(max_examples=40)
@given(ANYTHING)
def test_no_content_crashes_the_reader(content: Any) -> None:
    with tempfile.NamedTemporaryFile("w") as file:
        yaml.safe_dump(content, file)
        file.flush()
        try:
            assert isinstance(read([Path(file.name)]), Kubeconfig)
        except BadInput:
            pass


async def test_in_a_pod_the_server_is_in_the_environment_and_the_token_in_a_file(write: Write, tmp_path: Path) -> None:
    token = write("first", "token")
    write("AUTHORITY", "ca.crt")
    write("train", "namespace")
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    access = in_cluster(environment=environment, folder=tmp_path)
    assert (access.server, access.namespace, access.authority) == ("https://[fd00::1]:443", "train", b"AUTHORITY")
    assert (await access.credentials.identity()).headers == {"Authorization": "Bearer first"}
    assert not access.credentials.refused()  # the file has nothing else
    token.write_text("second")
    assert access.credentials.refused()
    assert (await access.credentials.identity()).headers == {"Authorization": "Bearer second"}


def test_outside_a_pod_that_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not in a Pod"):
        in_cluster(environment={})
    with pytest.raises(BadInput, match="does the Pod mount"):
        in_cluster(environment={"KUBERNETES_SERVICE_HOST": "h", "KUBERNETES_SERVICE_PORT": "1"}, folder=tmp_path)


@pytest.mark.parametrize(
    ("server", "exempt", "is_used"),
    [
        ("https://api.example:6443", "", True),
        ("https://api.example:6443", "other.example", True),
        ("https://api.example:6443", "example", False),
        ("https://api.example:6443", ".example", False),
        ("https://api.example:6443", "*.example", False),
        ("https://api.example:6443", "api.example:6443", False),
        ("https://api.example:6443", "api.example:443", True),
        ("https://notexample", "example", True),
        ("https://10.1.2.3", "10.0.0.0/8", False),
        ("https://10.1.2.3", "192.168.0.0/16, 10.1.2.3", False),
        ("https://10.1.2.3", "192.168.0.0/16", True),
        ("https://api.example", "*", False),
        ("https://127.0.0.1:6443", "", False),
        ("https://localhost", "", False),
    ],
)
def test_the_usual_variables_choose_a_proxy(server: str, exempt: str, is_used: bool) -> None:
    environment = {"HTTPS_PROXY": "proxy.example:3128", "NO_PROXY": exempt}
    assert proxy_for(server, environment) == ("http://proxy.example:3128" if is_used else None)
    assert proxy_for(server, {}) is None


def test_a_proxy_in_the_kubeconfig_wins(write: Write) -> None:
    path = write(a_config(cluster={"proxy-url": "http://mine:1"}))
    assert load([path], environment={"HTTPS_PROXY": "http://other:2"}).proxy == "http://mine:1"
