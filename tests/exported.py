"""The program `encode.py` of an export, as a module."""

import importlib.util

from fieldwise.bundle.export import write_encoder


def exported(encoder, folder):
    """The module `encode.py` of an encoder, written to a folder with the files that it reads."""
    write_encoder(encoder, folder)
    spec = importlib.util.spec_from_file_location("encode", folder / "encode.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
