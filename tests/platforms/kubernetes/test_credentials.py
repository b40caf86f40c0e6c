"""Credentials that change: files that are replaced, plug-ins and certificates as they really are run and shown."""

import asyncio
import ssl
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from shoal.platforms.kubernetes.access import Access, Certificate, Identity
from shoal.platforms.kubernetes.client import Client, ClientSettings
from shoal.platforms.kubernetes.credentials import Exec, Files, Fixed, Plugin
from shoal.platforms.kubernetes.errors import Unauthorized, Unavailable

V1 = "client.authentication.k8s.io/v1"

PLUGIN = """
import json, os, sys
info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
with open(sys.argv[1], "a") as file:
    file.write("run\\n")
runs = len(open(sys.argv[1]).readlines())
status = {"token": f"t{runs}", "expirationTimestamp": sys.argv[2]}
print(json.dumps({"apiVersion": info["apiVersion"], "kind": "ExecCredential", "status": status}))
"""


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


def a_plugin(*words: str, **more: str) -> Plugin:
    return Plugin(argv=(sys.executable, "-c", *words), api_version=V1, **more)  # type: ignore[arg-type]


async def test_a_plugin_is_run_once_until_its_answer_expires_or_is_refused(tmp_path: Path) -> None:
    clock = Clock()
    expires = clock.now + timedelta(minutes=10)
    credentials = Exec(a_plugin(PLUGIN, str(tmp_path / "runs"), expires.isoformat()), now=clock)
    together = await asyncio.gather(*(credentials.identity() for _ in range(5)))
    assert {identity.headers["Authorization"] for identity in together} == {"Bearer t1"}
    clock.now = expires - timedelta(seconds=31)
    assert (await credentials.identity()).headers == {"Authorization": "Bearer t1"}
    clock.now = expires - timedelta(seconds=29)  # soon enough before its end that no call is caught by it
    assert (await credentials.identity()).headers == {"Authorization": "Bearer t2"}
    assert credentials.refused()
    assert (await credentials.identity()).headers == {"Authorization": "Bearer t3"}


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("import sys; sys.exit('log in first')", "ended with code 1: log in first"),
        ("print('secret-token')", "printed no ExecCredential"),
        ('print(\'{"apiVersion": "v0", "kind": "ExecCredential"}\')', "printed ExecCredential of v0"),
        (f'print(\'{{"apiVersion": "{V1}", "kind": "ExecCredential"}}\')', "neither a token nor a certificate"),
        (
            f'print(\'{{"apiVersion": "{V1}", "kind": "ExecCredential", "status": {{"clientKeyData": "k"}}}}\')',
            "only one of certificate and key",
        ),
    ],
)
async def test_a_plugin_that_fails_is_named_and_what_it_printed_is_not_repeated(script: str, message: str) -> None:
    with pytest.raises(Unauthorized, match=message) as failed:
        await Exec(a_plugin(script)).identity()
    assert "secret-token" not in str(failed.value)


async def test_a_plugin_that_is_not_there_or_does_not_end() -> None:
    missing = Plugin(argv=("no-such-plugin",), api_version=V1, install_hint="install it from the store")
    with pytest.raises(Unauthorized, match="install it from the store"):
        await Exec(missing).identity()
    with pytest.raises(Unauthorized, match=r"did not end within 0\.2 s"):
        await Exec(a_plugin("import time; time.sleep(600)"), seconds=0.2).identity()


async def test_a_file_is_read_again_after_a_while_and_kept_while_it_is_being_replaced(tmp_path: Path) -> None:
    token, now = tmp_path / "token", 0.0
    token.write_text("one\n")
    credentials = Files(token=token, clock=lambda: now)

    async def shown() -> str:
        return (await credentials.identity()).headers["Authorization"]

    assert await shown() == "Bearer one"
    token.write_text("two")
    assert await shown() == "Bearer one"
    now += 61
    assert await shown() == "Bearer two"
    token.unlink()
    now += 61
    assert await shown() == "Bearer two"
    with pytest.raises(Unauthorized, match="cannot read our credentials"):
        await Files(token=token).identity()


def a_certificate(
    name: str, signer: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None = None
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issuer, issuer_key = (signer[0].subject, signer[1]) if signer else (subject, key)
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=signer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
    return made, key


def pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def shown(made: tuple[x509.Certificate, ec.EllipticCurvePrivateKey]) -> Certificate:
    key = made[1].private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Certificate(pem(made[0]), key)


async def test_a_client_certificate_is_shown_and_the_server_is_checked(tmp_path: Path) -> None:
    authority = a_certificate("authority")
    server, ann = shown(a_certificate("kubernetes", authority)), shown(a_certificate("ann", authority))
    (tmp_path / "server.pem").write_bytes(server.certificate + server.key)
    trust = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=pem(authority[0]).decode())
    trust.load_cert_chain(tmp_path / "server.pem")
    trust.verify_mode = ssl.CERT_OPTIONAL

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        peer = request.transport.get_extra_info("peercert")
        return web.json_response({"peer": dict(pair[0] for pair in peer["subject"])["commonName"] if peer else None})

    app = web.Application()
    app.router.add_get("/who", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=trust).start()
    url = f"https://127.0.0.1:{runner.addresses[0][1]}"

    async def asked(access: Access) -> object:
        async with Client(access, ClientSettings(retries=0)) as client:
            return await client.get_path("/who")

    as_ann = Fixed(Identity(certificate=ann))
    ca = pem(authority[0])
    assert await asked(Access(server=url, authority=ca, server_name="kubernetes")) == {"peer": None}
    good = Access(server=url, authority=ca, server_name="kubernetes", credentials=as_ann)
    assert await asked(good) == {"peer": "ann"}
    with pytest.raises(Unavailable, match="certificate"):  # not the name that the certificate has
        await asked(Access(server=url, authority=ca))
    with pytest.raises(Unavailable, match="certificate"):  # nobody we trust
        await asked(Access(server=url, authority=pem(a_certificate("other")[0]), server_name="kubernetes"))
    assert await asked(Access(server=url, verify=False, credentials=as_ann)) == {"peer": "ann"}
    await runner.cleanup()
