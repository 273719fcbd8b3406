"""Files that were damaged at random."""

import numpy as np


def mutate(content: bytes, rng: np.random.Generator) -> bytes:
    """Return a file with some of its bytes changed, taken out, repeated or cut off."""
    data = bytearray(content)
    for _ in range(rng.integers(1, 6)):
        # Structure is where arrays are not: at both ends, more often than chance would hit it.
        place = int(rng.integers(len(data)))
        if rng.random() < 0.7:
            edge = min(len(data), 6000)
            place = int(rng.integers(edge))
            place = place if rng.random() < 0.5 else len(data) - 1 - place
        kind, size = rng.integers(5), int(rng.integers(1, 40))
        if kind == 0:
            data[place] = int(rng.integers(256))
        elif kind == 1:
            data[place] ^= 1 << int(rng.integers(8))
        elif kind == 2:
            del data[place : place + size]
        elif kind == 3:
            data[place:place] = data[place : place + size]
        elif rng.random() < 0.2:
            del data[place:]
        if not data:
            break
    return bytes(data)
