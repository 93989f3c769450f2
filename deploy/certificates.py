#!/usr/bin/env python3
"""Create certificates for a Dask cluster: DIRECTORY/ca.pem, cert.pem and key.pem.

    python deploy/certificates.py DIRECTORY [--days 365]
    dask scheduler --protocol tls --tls-ca-file D/ca.pem --tls-cert D/cert.pem --tls-key D/key.pem
    dask worker tls://HOST:8786 --tls-ca-file D/ca.pem --tls-cert D/cert.pem --tls-key D/key.pem
    distmom fit ... --scheduler tls://HOST:8786 --tls-ca-file D/ca.pem --tls-cert D/cert.pem --tls-key D/key.pem

Scheduler, workers and clients use the same certificate, and whoever can read key.pem may use the cluster. It is
signed by an authority whose key is not kept, so that no other certificate is accepted.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def certificate(
    name: str, key: ec.EllipticCurvePrivateKey, issuer: str, signer: ec.EllipticCurvePrivateKey, days: int
) -> x509.Certificate:
    """Return a certificate for a key, valid from an hour ago, as clocks differ."""
    now = datetime.datetime.now(datetime.UTC)
    subject, authority = (
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in (name, issuer)
    )
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(authority)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=name == issuer, path_length=None), critical=True)
        .sign(signer, hashes.SHA256())
    )


def write_certificates(directory: Path, days: int) -> None:
    """Write the three files, readable by their owner alone; FileExistsError if one exists."""
    authority, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca = certificate("distmom authority", authority, "distmom authority", authority, days)
    own = certificate("distmom cluster", key, "distmom authority", authority, days)
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    files = {"ca.pem": ca.public_bytes(pem), "cert.pem": own.public_bytes(pem), "key.pem": secret}
    for name, content in files.items():
        with open(os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(content)


def main(arguments: list[str] | None = None) -> int:
    """Run the script and return its exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, metavar="DIRECTORY")
    parser.add_argument("--days", type=int, default=365, help="validity (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        write_certificates(options.directory, options.days)
    except OSError as error:
        sys.stderr.write(f"{error.filename}: {error.strerror}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
