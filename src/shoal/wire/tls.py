"""TLS with a key of the job's own. Peers do not trust an authority: they know the certificate's fingerprint.

The certificate is made from 32 secret bytes and nothing else: same secret, same certificate. A job that listens
makes a random one and prints its fingerprint in the join line. Invocations that only share a token (torchrun's
`--rdzv-endpoint` style, where nobody can print anything beforehand) derive it from the token, so that each side
knows the fingerprint without being told.
"""

import hashlib
import secrets
import ssl
import tempfile
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

_PREFIX = "sha256:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    cert_pem: bytes
    key_pem: bytes = field(repr=False)
    fingerprint: str
    """`sha256:<hex of the DER certificate's digest>`"""

    def server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        with tempfile.TemporaryDirectory(prefix="shoal-tls-") as folder:  # the ssl module reads files only
            pem = Path(folder, "job.pem")
            pem.touch(mode=0o600)
            pem.write_bytes(self.key_pem + self.cert_pem)
            context.load_cert_chain(pem)
        return context


def new_certificate() -> Certificate:
    return certificate_from_secret(secrets.token_bytes(32))


def certificate_from_secret(secret: bytes) -> Certificate:
    """The one certificate that belongs to a secret."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.x509.oid import NameOID

    seed = hashlib.sha256(b"shoal tls key\0" + secret).digest()
    key = Ed25519PrivateKey.from_private_bytes(seed)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "shoal job")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(int.from_bytes(hashlib.sha256(seed).digest()[:8], "big") | 1)
        .not_valid_before(datetime(2020, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(2120, 1, 1, tzinfo=UTC))
        .sign(key, None)
    )
    der = certificate.public_bytes(serialization.Encoding.DER)
    return Certificate(
        cert_pem=certificate.public_bytes(serialization.Encoding.PEM),
        key_pem=key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
        fingerprint=_PREFIX + hashlib.sha256(der).hexdigest(),
    )


def fingerprint_bytes(fingerprint: str) -> bytes:
    """The digest in a fingerprint. Raises ValueError with what is wanted."""
    text = fingerprint.strip().lower().removeprefix(_PREFIX).replace(":", "")
    try:
        digest = bytes.fromhex(text)
    except ValueError:
        digest = b""
    if len(digest) != hashlib.sha256().digest_size:
        raise ValueError(f"a fingerprint is {_PREFIX} and 64 hexadecimal digits, got {fingerprint!r}")
    return digest
