"""AES-256-GCM: what is encrypted can be read by who has the key, and not be changed by anyone else unnoticed.

A module of its own, which `sealing` imports when there is something to encrypt: the library takes ten megabytes of
every process that has it, and most nodes encrypt nothing.
"""

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

Buffer = bytes | bytearray | memoryview


class Cipher:
    def __init__(self, key: bytes) -> None:
        self._gcm = AESGCM(key)

    def encrypt(self, nonce: bytes, data: Buffer, bound_to: bytes) -> bytes:
        return self._gcm.encrypt(nonce, data, bound_to)

    def decrypt(self, nonce: bytes, data: Buffer, bound_to: bytes) -> bytes | None:
        """None: it is not what was encrypted, or not under this key, or not for this place."""
        try:
            return self._gcm.decrypt(nonce, data, bound_to)
        except InvalidTag:
            return None
