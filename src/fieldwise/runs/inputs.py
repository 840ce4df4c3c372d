"""The input files of a recipe, with their digests."""

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from fieldwise.data.encode.vector_files import files_of_vectors
from fieldwise.data.read.file_listing import find_files, is_many
from fieldwise.data.read.folder_columns import folder_values
from fieldwise.data.read.public_sets import PUBLIC_SETS
from fieldwise.errors import DataError
from fieldwise.runs.data_settings import DataSettings
from fieldwise.runs.raw_table import load_frame
from fieldwise.runs.recipe import Recipe
from fieldwise.storage.checksums import file_digest
from fieldwise.storage.files import file_state


@dataclass(frozen=True)
class Inputs:
    """The input files of a recipe at one moment."""

    files: Mapping[str, str]  # the digest of each file's content, by name
    # its size, modification time and inode: a cheap check for changes
    state: Mapping[str, tuple[int, int, int]]

    @classmethod
    def of(cls, paths: Mapping[str, Path]) -> "Inputs":
        """The state and digests of files."""
        state = {name: file_state(path) for name, path in paths.items()}
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            digests = threads.map(file_digest, paths.values())
            return cls(dict(zip(paths, digests, strict=True)), state)

    def unchanged(self, paths: Mapping[str, Path]) -> bool:
        """Whether no file has changed."""
        try:
            return self.state == {name: file_state(path) for name, path in paths.items()}
        except OSError:
            return False


def data_inputs(recipe: Recipe, data_dir: Path) -> Inputs:
    """The files that a recipe reads, with digests; a DataError if one cannot be read."""
    files = input_files(recipe, data_dir)
    if not files and recipe.data.name in PUBLIC_SETS:
        load_frame(recipe.data, data_dir)  # whose error says what is absent
    try:
        return Inputs.of(files)
    except OSError as e:
        raise DataError(
            f"recipe {recipe.name}: cannot read {e.filename}: {e.strerror or e}"
        ) from None


def input_files(recipe: Recipe, data_dir: Path) -> dict[str, Path]:
    """The files that a recipe reads: those of its data, of features, and of vectors by id."""
    files = data_files(recipe.data, data_dir)
    for feature in recipe.features:
        if feature.table is not None:
            tables = _files_of_path(Path(feature.table))
            files |= {f"{feature.label} {name}": path for name, path in tables.items()}
    for f in recipe.schema.fields:
        if f.vector_file is not None:
            for path in files_of_vectors(Path(f.vector_file)):
                files[f"{f.name}{''.join(path.suffixes)}"] = path
    return files


def data_files(data: DataSettings, data_dir: Path) -> dict[str, Path]:
    """The files that `load_frame` may read, by names that do not depend on their folder."""
    if data.path is not None:
        return _files_of_path(Path(data.path))
    if data.name not in PUBLIC_SETS:
        return {}
    folder = data_dir / PUBLIC_SETS[data.name].folder
    paths = {*folder.rglob("*"), *folder.glob("*/*")}  # rglob skips the contents of linked folders
    return {str(path.relative_to(folder)): path for path in paths if path.is_file()}


def _files_of_path(path: Path) -> dict[str, Path]:
    """The files of a `data.path`, by number, by the columns that their folders give, and by suffixes."""
    if not is_many(path):
        return {f"data{_folder_columns(path)}{''.join(path.suffixes)}": path}
    return {
        f"data/{number:06d}{_folder_columns(file)}{''.join(file.suffixes)}": file
        for number, file in enumerate(find_files(path))
    }


def _folder_columns(file: Path) -> str:
    """The columns that a file's folders give, which are data as its content is."""
    return "".join(f",{column}={value}" for column, value in folder_values(file).items())
