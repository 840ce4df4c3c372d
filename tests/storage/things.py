"""An artifact of no room's own, which is written and read without PyTorch."""

from pathlib import Path

from fieldwise import DataError
from fieldwise.storage.artifact import ArtifactKind, writing

THING = ArtifactKind(
    name="thing", manifest="thing.json", format=3, oldest=2, parts={"left": "txt", "right": "bin"},
    damage=DataError, remedy="make it again", origin="give a folder of things",
)  # fmt: skip


def save_thing(folder: Path, number: int) -> None:
    with writing(THING, folder) as writer:
        writer.add("left", str(number).encode() * 100)
        with writer.open("right") as file:
            file.write(bytes([number]) * 70_000)
            file.write(b"!")
        writer.finish(number=number)


def load_thing(folder: Path) -> int:
    def read(thing):
        number = thing.about["number"]
        assert thing.content("left") == str(number).encode() * 100
        assert thing.content("right") == bytes([number]) * 70_000 + b"!"
        return number

    return THING.load(folder, read)
