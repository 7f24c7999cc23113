"""The keys of the deployment by which positions are authenticated: the first signs, all of them verify.

Every server of a deployment holds the same keys, from a file or from Redis (`credentials`, `store.signing_keys`). They
are replaced while sessions run: an encoder asks for the key that signs each time.
"""

import base64
import binascii
import hmac
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from feedmux_server.core.errors import ErrorReason, FeedmuxError

KEY_BYTES_MIN: Final = 32
KEY_ID_BYTES: Final = 4
MAC_BYTES: Final = 16
KEYS_MAX: Final = 16


class PositionKey:
    """One key. Its id stands in every position that it signed, and says nothing about it."""

    __slots__ = ("_mac", "id", "material")

    def __init__(self, material: bytes) -> None:
        if len(material) < KEY_BYTES_MIN:
            raise ValueError(f"a key has at least {KEY_BYTES_MIN} bytes")
        self.material = material
        self.id = blake2b(material, digest_size=KEY_ID_BYTES, person=b"feedmux-key-id").digest()
        secret = blake2b(material, person=b"feedmux-key").digest()
        self._mac = blake2b(key=secret, digest_size=MAC_BYTES)

    def sign(self, content: bytes) -> bytes:
        """The MAC over `content`."""
        mac = self._mac.copy()
        mac.update(content)
        return mac.digest()

    def verifies(self, content: bytes, mac: bytes) -> bool:
        return hmac.compare_digest(self.sign(content), mac)


class PositionKeys:
    """The present keys. Without any (Redis was unavailable since the start) positions are neither made nor read."""

    __slots__ = ("_keys", "_signing")

    def __init__(self, materials: Sequence[bytes] = ()) -> None:
        self._keys: dict[bytes, PositionKey] = {}
        self._signing: PositionKey | None = None
        self.replace(materials)

    @property
    def known(self) -> bool:
        return self._signing is not None

    @property
    def materials(self) -> tuple[bytes, ...]:
        """The keys, the one that signs first."""
        return tuple(key.material for key in self._keys.values())

    @property
    def signing(self) -> PositionKey:
        """Raises STATE_UNAVAILABLE while there are no keys."""
        if self._signing is None:
            raise _unknown()
        return self._signing

    def replace(self, materials: Sequence[bytes]) -> bool:
        """Takes other keys; True when they differ from those before."""
        if materials and tuple(materials) == self.materials:
            return False
        keys = [PositionKey(material) for material in materials]
        self._keys = {key.id: key for key in keys}
        self._signing = keys[0] if keys else None
        return True

    def verifying(self, key_id: bytes) -> PositionKey | None:
        """The key of that id. Raises STATE_UNAVAILABLE while there are no keys."""
        if self._signing is None:
            raise _unknown()
        return self._keys.get(key_id)


def parse_keys(text: str) -> tuple[bytes, ...]:
    """Keys as they stand in a file or in Redis: one a line in base64, the one that signs first. Empty lines and those
    that begin with # do not count. Raises ValueError, which names the line and not what stands there."""
    found: list[bytes] = []
    for number, line in enumerate(text.splitlines(), 1):
        word = line.strip()
        if not word or word.startswith("#"):
            continue
        try:
            material = base64.b64decode(word, validate=True)
        except (binascii.Error, ValueError):
            raise ValueError(f"line {number} is not base64; make a key with: openssl rand -base64 32") from None
        if len(material) < KEY_BYTES_MIN:
            raise ValueError(
                f"line {number} has less than {KEY_BYTES_MIN} bytes; make a key with: openssl rand -base64 32"
            )
        if material not in found:
            found.append(material)
    if not found:
        raise ValueError("there is no key; make one with: openssl rand -base64 32")
    if len(found) > KEYS_MAX:
        raise ValueError(f"there are more than {KEYS_MAX} keys; remove the oldest")
    return tuple(found)


def format_keys(materials: Sequence[bytes]) -> str:
    """What `parse_keys` reads."""
    return "".join(base64.b64encode(material).decode() + "\n" for material in materials)


def _unknown() -> FeedmuxError:
    return FeedmuxError(
        ErrorReason.STATE_UNAVAILABLE,
        "Redis, which holds the keys of positions, has not been reached since this server started",
        retry_after_s=2.0,
    )
