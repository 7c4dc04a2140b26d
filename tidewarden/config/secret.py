"""Secrets in memory (:class:`Secret`) and as hashes in a file (:func:`hash_secret`)."""

from __future__ import annotations

import base64
import binascii
import errno
import hashlib
import hmac
import os
from typing import Any, NoReturn

# 16 MiB and about 50 ms for each try: OWASP's lowest recommendation for scrypt with r=8 and p=1
# would be n=2^17, which a door that checks AUTH cannot spend per connection; generated secrets,
# which need no stretching, are the usual case.
SCRYPT_N = 2**14
SCRYPT_R = 8
SCRYPT_P = 1
_MEMORY_MAX = 256 * 1024 * 1024
HASH_ALLOWED = (
    "'scrypt$n$r$p$salt$hash' or 'sha256$hex', as `tidewarden node --hash-secret` prints it"
)


class Secret:
    """Shows its text only when asked to: not in ``repr``, ``str``, a trace or a pickle."""

    __slots__ = ("_text",)

    def __init__(self, text: str = "") -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text itself; hand it on, keep it nowhere."""
        return self._text

    def __repr__(self) -> str:
        return "Secret(…)"

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._text.encode(), other._text.encode())

    def __hash__(self) -> int:
        return hash(("Secret", self._text))

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Secret:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret is not pickled")


def secret_of_file(path: str) -> str:
    """
    Read the text of a file with a secret; ``~`` stands for a home.

    Raises: OSError: it cannot be read, ``strerror`` says why.
    """
    try:
        with open(os.path.expanduser(path), encoding="utf-8") as file:
            return file.read()
    except UnicodeDecodeError:
        raise OSError(errno.EILSEQ, "it is not UTF-8") from None
    except ValueError:
        raise OSError(errno.EINVAL, "no path holds such characters") from None


def hash_secret(text: str) -> str:
    """Salt and stretch ``text`` for ``[[users]] secret_hash``. Takes some 50 ms."""
    salt = os.urandom(16)
    key = _scrypt(text, salt, SCRYPT_N, SCRYPT_R, SCRYPT_P)
    in_text = f"{base64.b64encode(salt).decode()}${base64.b64encode(key).decode()}"
    return f"scrypt${SCRYPT_N}${SCRYPT_R}${SCRYPT_P}${in_text}"


def hash_generated(text: str) -> str:
    """
    Hash a generated secret once.

    Only for secrets of at least 128 random bits, which cannot be guessed anyway.
    """
    return "sha256$" + hashlib.sha256(_bytes(text)).hexdigest()


def check_secret(text: str, secret_hash: str) -> bool:
    """
    Tell in constant time whether ``secret_hash`` was made from ``text``.

    A scrypt hash takes some 50 ms: a server checks it in a thread and remembers the answer.

    Raises: ValueError: ``secret_hash`` has no form that we know.
    """
    kind, parts = _parse(secret_hash)
    if kind == "sha256":
        return hmac.compare_digest(hashlib.sha256(_bytes(text)).hexdigest(), parts[0])
    n, r, p, salt, key = parts
    return hmac.compare_digest(_scrypt(text, salt, n, r, p), key)


def quick_hash(secret_hash: str) -> bool:
    """Tell whether a check against this hash takes microseconds."""
    return secret_hash.startswith("sha256$")


def known_hash(secret_hash: str) -> bool:
    """Tell whether ``secret_hash`` has a form that :func:`check_secret` accepts."""
    try:
        _parse(secret_hash)
    except ValueError:
        return False
    return True


def _parse(secret_hash: str) -> tuple[str, list[Any]]:
    kind, *parts = secret_hash.split("$")
    if kind == "sha256" and len(parts) == 1 and len(parts[0]) == 64:
        int(parts[0], 16)
        return kind, [parts[0].lower()]
    if kind == "scrypt" and len(parts) == 5:
        n, r, p = (int(part) for part in parts[:3])
        try:
            salt, key = (base64.b64decode(part, validate=True) for part in parts[3:])
        except binascii.Error as error:
            raise ValueError(HASH_ALLOWED) from error
        power_of_two = n > 1 and n & (n - 1) == 0
        if (
            power_of_two
            and r > 0
            and p > 0
            and 128 * n * r * p <= _MEMORY_MAX // 2
            and len(salt) >= 8
            and len(key) == 32
        ):
            return kind, [n, r, p, salt, key]
    raise ValueError(HASH_ALLOWED)


def _bytes(text: str) -> bytes:
    """
    Encode what was typed or sent, if it is no UTF-8, too: doors read such bytes as surrogates.
    """
    return text.encode("utf-8", "surrogateescape")


def _scrypt(text: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    return hashlib.scrypt(_bytes(text), salt=salt, n=n, r=r, p=p, maxmem=_MEMORY_MAX, dklen=32)
