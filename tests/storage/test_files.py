"""Files that are flushed while they are written."""

import errno
import os

import pytest

from fieldwise.storage import files
from fieldwise.storage.files import FlushedFile


def write_blocks(path, blocks):
    with open(path, "wb") as file, FlushedFile(file) as written:
        for _ in range(blocks):
            written.write(bytes(11))


@pytest.mark.parametrize("blocks", [1, 5])
def test_a_flush_that_fails_in_the_background_is_an_error(tmp_path, monkeypatch, blocks):
    """The system tells an error of the disk once: a second flush of the file would succeed."""
    flushed = []

    def fails_once(descriptor):
        flushed.append(descriptor)
        if len(flushed) == 1:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(files, "FLUSHED", 10)
    monkeypatch.setattr(os, "fsync", fails_once)
    with pytest.raises(OSError, match="Input/output error"):
        write_blocks(tmp_path / "file", blocks)
