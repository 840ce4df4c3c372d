"""Files that a crash cannot damage: atomic writing, locks, digests, the cache."""
