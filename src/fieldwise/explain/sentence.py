"""A prediction as a sentence: the number, its main reasons, and what speaks against it."""

from collections.abc import Sequence
from typing import NamedTuple

from fieldwise.evaluation.slices import ABSENT
from fieldwise.explain.subject import UNSEEN, Subject
from fieldwise.schema.ids import named_id
from fieldwise.schema.label import Task

MAX_REASONS = 3
LEAST_SHARE_OF_STRONGEST = 0.5
"""The least size of a further reason, and of one against, as a share of the strongest one's."""
MAX_CHARACTERS_OF_VALUE = 60

Part = tuple[tuple[int, ...], float]
"""A field or a pair of fields, by number, and its part of the score."""


def reasons_sentence(
    subject: Subject,
    row: int,
    parts: Sequence[Part],
    measured_pairs: Sequence[Part],
    prediction: float,
) -> str:
    """The prediction, its main reasons (at most three), and the strongest one against it if it is half as strong.

    Args:
        subject: the rows.
        row: number of the row.
        parts: the parts that add up to the difference from the background rows.
        measured_pairs: further reasons: interaction effects, which do not add up.
        prediction: a probability or a number.
    """
    task = subject.settings.task
    number = prediction_text(prediction, task)
    sign = 1.0 if sum(amount for _, amount in parts) >= 0 else -1.0
    strongest_first = sorted([*parts, *measured_pairs], key=lambda part: -sign * part[1])
    strongest = sign * strongest_first[0][1] if strongest_first else 0.0
    if not strongest > 0:
        return f"{number}, as for the rows it is compared with: no value changes it"

    least = LEAST_SHARE_OF_STRONGEST * strongest
    named: set[int] = set()
    reasons: list[str] = []
    for fields, amount in strongest_first:
        is_strong = sign * amount >= least
        if is_strong and len(reasons) < MAX_REASONS and not named.issuperset(fields):
            reasons.append(_clause(subject, row, fields, up=amount > 0))
            named |= set(fields)

    against = ""
    fields, amount = strongest_first[-1]
    if -sign * amount >= least and not named.issuperset(fields):
        against = f", although {_clause(subject, row, fields, up=sign < 0)}"

    # The number alone does not say which way the reasons go, unless it is on their side of 50 %.
    usual = ""
    if task != "binary" or (prediction > 0.5) != (sign > 0):
        usual = ", more than usual" if sign > 0 else ", less than usual"
    joined = reasons[-1]
    if len(reasons) > 1:
        joined = f"{', '.join(reasons[:-1])}, and {reasons[-1]}"
    return f"{number}{usual}, mainly because {joined}{against}"


def prediction_text(share: float, task: Task) -> str:
    """A probability as a percentage, with more digits near 0 and 1; a number of a regression with four digits.

    >>> [prediction_text(p, "binary") for p in (0.8234, 0.041, 0.00321, 0.99996, 1e-7)]
    ['82 %', '4.1 %', '0.32 %', 'above 99.99 %', 'below 0.01 %']
    """
    if task != "binary":
        return f"{share:.4g}"
    if share < 1e-4:
        return "below 0.01 %"
    if share > 1 - 1e-4:
        return "above 99.99 %"
    share_of_rarer_class = min(share, 1 - share)
    digits = 2
    if share_of_rarer_class >= 0.1:
        digits = 0
    elif share_of_rarer_class >= 0.01:
        digits = 1
    return f"{100 * share:.{digits}f} %"


class _ValueWords(NamedTuple):
    """A field's value in words: whose id it is ("user", "item" or ""), as a noun, and as a main clause."""

    id_of: str
    noun: str
    clause: str


def _clause(subject: Subject, row: int, fields: tuple[int, ...], *, up: bool) -> str:
    """A field or a pair of fields as a reason for a higher score (`up`) or a lower one."""
    words = [_in_words(subject, row, field, up) for field in fields]
    if len(words) == 1:
        return words[0].clause

    first, second = words
    first_field, second_field = fields
    if second.id_of == "user" and first.id_of != "user":
        first, second = second, first
        first_field, second_field = second_field, first_field
    if first.id_of == "user" and subject.schema.fields[second_field].role == "item":
        return f"this user {'likes' if up else 'does not like'} {second.noun}"
    return f"{words[0].noun} goes {'well' if up else 'badly'} with {words[1].noun}"


def _in_words(subject: Subject, row: int, number: int, up: bool) -> _ValueWords:
    """The value of a field, by its number, in a row."""
    field = subject.schema.fields[number]
    name = field.name.replace("_", " ")
    value = subject.values.row(row)[number]
    is_unseen = field.cell == "category" and value.endswith(UNSEEN)
    if is_unseen:
        value = value.removesuffix(UNSEEN)

    for role in ("user", "item"):
        if field.column == named_id(role, subject.schema):
            clause = f"this {role}’s scores are {'high' if up else 'low'} in general"
            if is_unseen:
                clause = f"this {role} is new"
            return _ValueWords(role, f"this {role}", clause)

    if value == ABSENT:
        return _ValueWords("", f"a missing {name}", f"the {name} is missing")
    if len(value) > MAX_CHARACTERS_OF_VALUE:
        value = value[: MAX_CHARACTERS_OF_VALUE - 1] + "…"
    levels = subject.levels.get(field.name)
    if levels is not None and levels[row]:
        level = levels[row]
        return _ValueWords("", f"a {level} {name} ({value})", f"the {name} is {level} ({value})")
    if is_unseen:
        noun = f"the new {name} {value}"
        clause = f"the {name} is {value}, which is new to the model"
        return _ValueWords("", noun, clause)
    if field.cell == "vector":
        return _ValueWords("", f"the {name}", f"the {name} speaks {'for' if up else 'against'} it")
    is_plural = field.cell == "list" and name.endswith("s")
    clause = f"the {name} {'are' if is_plural else 'is'} {value}"
    return _ValueWords("", f"the {name} {value}", clause)
