"""The text of the recipe that `fieldwise init` writes."""

from collections.abc import Mapping
from typing import Any

MODEL_TEXT = """\
[model]
name = "autoint+"  # or lr, fm, afm, deepfm, ...: docs/models/README.md; --set model.name=fm tries another

# Settings not given here are chosen from the data; `fieldwise describe` shows them. To set your own, for example:
# [training]
# epochs = 20
# learning_rate = 0.001
"""


def recipe_text(name: str, table: str, settings: Mapping[str, Any], split_reason: str) -> str:
    """A recipe with comments.

    Args:
        name: the name of the recipe's file.
        table: the name of the table's file.
        settings: by table of the recipe, its settings.
        split_reason: why the rows are split so.
    """
    import tomli_w

    from fieldwise.data.infer.schema import one_line

    split_comment = one_line(split_reason[0].upper() + split_reason[1:])
    comments = {
        "schema": ["# What each column means: check it, and correct it where needed."],
        "split": [f"# {split_comment}. Other ways: random, time, leave-last-out, column."],
        "negatives": [
            "# Every row is an event that happened: for each, items are drawn that the user never used.",
            "# item_columns describe the item: a drawn row gets the drawn item's values, which are its latest ones at",
            "# or before the time of the row.",
        ],
    }
    lines = [
        f"# A recipe for {one_line(table)}: paths are relative to this file's folder.",
        f"#   fieldwise describe {one_line(name)}    shows what it will do, without training",
        f"#   fieldwise train {one_line(name)}",
        "",
    ]
    for key, value in settings.items():
        lines += comments.get(key, [])
        lines += [tomli_w.dumps({key: value}).strip(), ""]
    lines.append(MODEL_TEXT)
    return "\n".join(lines)
