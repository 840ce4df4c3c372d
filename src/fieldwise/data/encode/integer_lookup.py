"""A vectorized table from 64-bit integers to numbers."""

import numpy as np

# 2**64 over the golden ratio: nearby keys fall far apart (Knuth, 6.4)
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


class IntegerLookup:
    """A table from K different keys (int64) to numbers (int32), with open addressing and linear probing.

    A key that it does not hold has the number `absent`.

    >>> table = IntegerLookup(np.array([7, -1]), np.array([2, 3], dtype=np.int32), absent=0)
    >>> table.find(np.array([-1, 8, 7])).tolist()
    [3, 0, 2]
    """

    def __init__(self, keys: np.ndarray, numbers: np.ndarray, absent: int) -> None:
        bits = max(1, (2 * len(keys)).bit_length())  # at most half of the slots are taken
        self._absent = absent
        self._last_slot = (1 << bits) - 1
        self._shift = np.uint64(64 - bits)
        self._keys = np.zeros(1 << bits, np.int64)
        self._numbers = np.full(1 << bits, absent, np.int32)

        slots = self._first_slots(keys)
        while len(keys):
            is_free = self._numbers[slots] == absent
            # Of several keys for one slot the last one is stored, in both arrays.
            self._keys[slots[is_free]] = keys[is_free]
            self._numbers[slots[is_free]] = numbers[is_free]

            is_left = self._keys[slots] != keys
            keys = keys[is_left]
            numbers = numbers[is_left]
            slots = self._next_slots(slots[is_left])

    def find(self, keys: np.ndarray) -> np.ndarray:
        """The number of each key [N], int32."""
        slots = self._first_slots(keys)
        numbers: np.ndarray = self._numbers[slots]
        unresolved = np.flatnonzero(self._holds_others(slots, keys))
        slots = slots[unresolved]
        while len(unresolved):
            slots = self._next_slots(slots)
            numbers[unresolved] = self._numbers[slots]
            is_unresolved = self._holds_others(slots, keys[unresolved])
            unresolved = unresolved[is_unresolved]
            slots = slots[is_unresolved]
        return numbers

    def _first_slots(self, keys: np.ndarray) -> np.ndarray:
        return (keys.view(np.uint64) * MULTIPLIER >> self._shift).view(np.int64)

    def _next_slots(self, slots: np.ndarray) -> np.ndarray:
        return (slots + 1) & self._last_slot

    def _holds_others(self, slots: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Whether each slot is taken by another key than the one that is looked for."""
        return np.asarray((self._keys[slots] != keys) & (self._numbers[slots] != self._absent))
