"""HyperLogLogs as a Pika master keeps them: a string of 2^17 bytes, one a register.

An element's hash is MurmurHash3 (x86, 32 bits, seed 313). Its lower 17 bits choose the register. The register has the
largest position, counted from 1, of the lowest bit that is set in the upper 15 of any element's hash.
"""

_PRECISION = 17
_REGISTERS = 1 << _PRECISION
_RANK_MAX = 32 - _PRECISION + 1
_SEED = 313
_MASK = 0xFFFFFFFF


def with_elements(registers: bytes, elements: list[bytes]) -> bytes:
    if not elements:
        return registers
    changed = bytearray(registers or bytes(_REGISTERS))
    for element in elements:
        hashed = _murmur3(element)
        index, upper = hashed & (_REGISTERS - 1), hashed >> _PRECISION
        rank = (upper & -upper).bit_length() if upper else _RANK_MAX
        changed[index] = max(changed[index], rank)
    return bytes(changed)


def _murmur3(data: bytes) -> int:
    state = _SEED
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        state ^= _scrambled(int.from_bytes(data[at : at + 4], "little"))
        state = (_rotated(state, 13) * 5 + 0xE6546B64) & _MASK
    if whole < len(data):
        state ^= _scrambled(int.from_bytes(data[whole:], "little"))
    state ^= len(data)
    state = ((state ^ state >> 16) * 0x85EBCA6B) & _MASK
    state = ((state ^ state >> 13) * 0xC2B2AE35) & _MASK
    return state ^ state >> 16


def _scrambled(block: int) -> int:
    return _rotated(block * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK


def _rotated(number: int, bits: int) -> int:
    return (number << bits | number >> 32 - bits) & _MASK
