"""Keys and certificates of one cluster: its own authority, and what that signed.

Elliptic curves, because a key of that kind is made in a millisecond.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME = timedelta(days=365)


@dataclass(frozen=True, slots=True)
class Signed:
    """A certificate and its key, both PEM."""

    certificate: bytes
    key: bytes


class Authority:
    """A certificate authority that exists for one cluster and is forgotten with it."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("shoal cluster", ())
        extensions: list[tuple[x509.ExtensionType, bool]] = [
            (x509.BasicConstraints(ca=True, path_length=None), True),
            (_key_usage(signs_certificates=True), True),
            (x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), False),
        ]
        self.certificate = _pem(self._sign(self._name, self._key.public_key(), extensions))

    def server(self, names: Sequence[str]) -> Signed:
        """For a server that is called by any of these names or addresses."""
        return self._issue(_name(names[0], ()), ExtendedKeyUsageOID.SERVER_AUTH, names)

    def client(self, user: str, groups: Sequence[str] = ()) -> Signed:
        """For a client that Kubernetes shall know as this user in these groups."""
        return self._issue(_name(user, groups), ExtendedKeyUsageOID.CLIENT_AUTH, ())

    def _issue(self, subject: x509.Name, use: x509.ObjectIdentifier, names: Sequence[str]) -> Signed:
        key = ec.generate_private_key(ec.SECP256R1())
        extensions: list[tuple[x509.ExtensionType, bool]] = [
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (_key_usage(signs_certificates=False), True),
            (x509.ExtendedKeyUsage([use]), False),
            (x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), False),
        ]
        if names:
            extensions.append((x509.SubjectAlternativeName([_general_name(name) for name in names]), False))
        return Signed(_pem(self._sign(subject, key.public_key(), extensions)), private_pem(key))

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, extensions: Sequence[tuple[x509.ExtensionType, bool]]
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + LIFETIME)
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        return builder.sign(self._key, hashes.SHA256())


def signing_key() -> bytes:
    """A key for service account tokens."""
    return private_pem(ec.generate_private_key(ec.SECP256R1()))


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _name(common: str, organizations: Sequence[str]) -> x509.Name:
    parts = [(NameOID.COMMON_NAME, common), *((NameOID.ORGANIZATION_NAME, each) for each in organizations)]
    return x509.Name([x509.NameAttribute(kind, value) for kind, value in parts])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
