"""Where a job's token comes from when it is not found on this machine: a file, `SHOAL_TOKEN`, standard input.

Never argv: every user of a machine can read that.
"""

import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path

from shoal.cli.agent import TOKEN, TOKEN_FILE
from shoal.core.errors import BadInput
from shoal.wire.tokens import JobKeys

SHORTEST_SECRET = 16
"""Characters. Below that a secret can be guessed by trying."""
LONGEST_SECRET = 4096


def given_token(token_file: str | None, environment: Mapping[str, str], *, wanted_for: str) -> str:
    """The token that the user gave. `token_file` `-` is standard input."""
    path = token_file or (None if environment.get(TOKEN) else environment.get(TOKEN_FILE))
    if path is not None:
        token = _read(path)
        source = "standard input" if path == "-" else path
    else:
        token = environment.get(TOKEN, "").strip()
        source = TOKEN
    if token:
        return token
    if path is not None or TOKEN in environment:
        raise BadInput(f"{source} holds no token: it is empty")
    raise BadInput(f"{wanted_for} needs the job's token: set {TOKEN}, or give --token-file FILE (- is standard input)")


def shared_keys(name: str, secret: str) -> JobKeys:
    """The keys of a job whose invocations share nothing but a name and a secret: the same on every machine."""
    if len(secret) < SHORTEST_SECRET:
        raise BadInput(
            f"the shared token wants at least {SHORTEST_SECRET} characters, got {len(secret)}; "
            "`openssl rand -hex 32` makes a good one"
        )
    key = hashlib.sha256(b"shoal install key\0" + secret.encode()).digest()
    return JobKeys(uid=job_uid(name, hashlib.sha256(b"shoal uid\0" + key).hexdigest()[:12]), install_key=key)


def job_uid(name: str, suffix: str) -> str:
    """A uid that tells the job's name: a node that joins has only the token, and greets the job by name."""
    return f"{name}.{suffix}"


def job_name(uid: str) -> str:
    return uid.rpartition(".")[0]


def _read(path: str) -> str:
    try:
        if path == "-":
            return sys.stdin.readline(LONGEST_SECRET).strip()
        with Path(path).open(encoding="utf-8") as file:
            return file.read(LONGEST_SECRET).strip()
    except (OSError, UnicodeError) as exc:
        raise BadInput(f"the token file {path} cannot be read: {exc}") from exc
