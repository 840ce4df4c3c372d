"""Processes that write an index again and again, to be killed or to meet others."""

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from fieldwise import Bundle
from fieldwise.serving import build_index


def write(bundle, items, index, times, begun):
    """Build the index so often, each time with another number as price and title of all items."""
    bundle, items = Bundle.load(Path(bundle)), pl.read_parquet(items)
    begun.set()
    for number in range(times):
        shown = items.with_columns(price=pl.col("price") * 0 + number % 7, title=pl.lit(str(number)))
        build_index(bundle, shown, Path(index))


@contextmanager
def writers(*places) -> Iterator:
    """`start(times)` gives a process of `write` that has begun; imports are done once, in the server they fork from."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fieldwise.bundle.bundle", "fieldwise.serving.index"])
    children = []

    def start(times):
        begun = context.Event()
        children.append(context.Process(target=write, args=(*map(str, places), times, begun)))
        children[-1].start()
        assert begun.wait(300)
        return children[-1]

    try:
        yield start
    finally:
        for child in children:
            child.kill()
            child.join()
