"""Film titles for the simulated log: fictitious, readable and unique."""

import numpy as np

__all__ = ["film_titles"]

_ADJECTIVES = """
Silent Crooked Amber Hollow Distant Velvet Restless Broken Gentle Frozen Burning Secret Forgotten
Wild Golden Lonely Crimson Patient Borrowed Northern Electric Paper Midnight Stubborn Invisible
Quiet Salted Wandering Second Bitter Honest Reluctant Tender Faded Sudden Endless Copper Drowsy
Careless Upright Narrow Blue Seventh Glass Hidden Thirsty Winter Loyal Hungry Shallow
"""
_NOUNS = """
Harbour Lantern Orchard Station River Piano Letter Garden Compass Mountain Mirror Spring Kitchen
Bridge Summer Tailor Island Engine Promise Violin Market Painter Fox Railway Lighthouse Museum Baker
Storm Ladder Notebook Captain Sparrow Valley Staircase Meadow Window Clock Stranger Ferry Detective
Balloon Teacher Forest Neighbour Carousel Umbrella Signal Wedding Horizon Library
"""
_PLACES = """
Lisbon Arvale Ostend Merrin Cork Tallinn Bergen Halden Porto Verity Dunmore Sorrel Ghent Kestrel
Riga Willow Marsh Trieste Elmfield Nantes
"""


def film_titles(count: int, rng: np.random.Generator) -> list[str]:
    """`count` different titles; beyond a stock of about 5,000 with "Part 2" and so on.

    >>> len(set(film_titles(20_000, np.random.default_rng(0))))
    20000
    """
    adjectives, nouns, places = _ADJECTIVES.split(), _NOUNS.split(), _PLACES.split()
    stock = [f"The {a} {n}" for a in adjectives for n in nouns]
    stock += [f"The {n} of {p}" for n in nouns for p in places]
    stock += [f"{a} {p}" for a in adjectives for p in places]
    stock += [f"Goodbye, {a} {n}" for a in adjectives[::2] for n in nouns[::2]]
    order = rng.permutation(len(stock))
    titles = (stock[order[k % len(stock)]] for k in range(count))
    return [t if k < len(stock) else f"{t}, Part {k // len(stock) + 1}" for k, t in enumerate(titles)]
