"""A hash table of 64-bit integers in NumPy arrays, which finds many keys at once."""

from dataclasses import dataclass

import numpy as np

__all__ = ["Lookup"]

MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2**64 over the golden ratio: nearby keys fall far apart (Knuth, 6.4)


@dataclass(frozen=True, eq=False)
class Lookup:
    """A table from keys to numbers, with open addressing and linear probing.

    Attributes:
        keys: [2**bits] int64; undefined where the place is free.
        numbers: [2**bits] int32; `absent` where the place is free.
        bits: of a place.
        absent: the number of a key that the table does not hold.
    """

    keys: np.ndarray
    numbers: np.ndarray
    bits: int
    absent: int

    @classmethod
    def of(cls, keys: np.ndarray, numbers: np.ndarray, absent: int) -> "Lookup":
        """The table of K different keys.

        Args:
            keys: [K] int64, distinct.
            numbers: [K] int32, none of them `absent`.
            absent: the number of all other keys.

        >>> table = Lookup.of(np.array([7, -1]), np.array([2, 3], dtype=np.int32), absent=0)
        >>> table.find(np.array([-1, 8, 7])).tolist()
        [3, 0, 2]
        """
        bits = max(1, (2 * len(keys)).bit_length())  # at most half of the places are taken
        found = cls(np.zeros(1 << bits, np.int64), np.full(1 << bits, absent, np.int32), bits, absent)
        waiting, place = np.arange(len(keys)), found._places(keys)
        while len(waiting):
            free = found.numbers[place] == absent
            # Where several keys want one place the last one gets it, in both arrays.
            found.keys[place[free]] = keys[waiting[free]]
            found.numbers[place[free]] = numbers[waiting[free]]
            beaten = found.keys[place] != keys[waiting]
            waiting, place = waiting[beaten], found._next(place[beaten])
        return found

    def find(self, keys: np.ndarray) -> np.ndarray:
        """The number of each key.

        Shape:
            keys: [N] int64.
            returns [N] int32.
        """
        place = self._places(keys)
        numbers: np.ndarray = self.numbers[place]
        other = np.flatnonzero((self.keys[place] != keys) & (numbers != self.absent))
        place = place[other]
        while len(other):
            place = self._next(place)
            numbers[other] = self.numbers[place]
            more = (self.keys[place] != keys[other]) & (self.numbers[place] != self.absent)
            other, place = other[more], place[more]
        return numbers

    def _places(self, keys: np.ndarray) -> np.ndarray:
        """Where the search for each key begins."""
        mixed = keys.view(np.uint64) * MULTIPLIER
        mixed >>= np.uint64(64 - self.bits)
        return mixed.view(np.int64)

    def _next(self, place: np.ndarray) -> np.ndarray:
        following: np.ndarray = (place + 1) & ((1 << self.bits) - 1)
        return following
