"""The reasons of one row's prediction as a sentence for readers who do not know logits."""

from typing import TYPE_CHECKING

from fieldwise.explain.values import ABSENT, UNSEEN
from fieldwise.schema import Schema
from fieldwise.schema.ids import named_id
from fieldwise.schema.label import Task

if TYPE_CHECKING:
    from fieldwise.explain.explanation import Explanation

__all__ = ["prediction_text", "sentence"]

MAIN = 3  # maximum number of reasons
HALF = 0.5  # minimum size of a further reason, and of one against, as a share of the strongest one's
LONGEST = 60  # characters of a value


def sentence(explanation: "Explanation", row: int) -> str:
    """The prediction, its main reasons (at most three), and the strongest one against it if it is half as strong.

    A reason is a field or a pair of fields whose part of the score differs from its mean over the background rows: of
    the model's own terms with the method `terms`, else a field's contribution.

    >>> from fieldwise import LR, Label, Numeric, Recommender, Schema, TrainingSettings
    >>> import polars as pl
    >>> log = pl.DataFrame({"price": [1.0, 2.0, 8.0, 9.0] * 100, "bought": [1, 1, 0, 0] * 100})
    >>> schema = Schema(fields=(Numeric("price"),), label=Label("bought"))
    >>> training = TrainingSettings(epochs=30, batch_size=16, learning_rate=0.1)
    >>> found = Recommender(schema, LR(), training=training).fit(log).explain(log.head(1))
    >>> sentence(found, 0).partition(", ")[2]
    'mainly because the price is low (1)'
    """
    parts = _parts(explanation, row)
    total = sum(amount for _, amount in parts)
    sign = 1.0 if total >= 0 else -1.0
    ordered = sorted(parts, key=lambda part: -sign * part[1])
    most = max(sign * ordered[0][1], 0.0) if ordered else 0.0
    named: set[int] = set()
    reasons: list[str] = []
    against = ""
    for fields, amount in ordered:
        if len(reasons) < MAIN and sign * amount >= HALF * most > 0 and not named.issuperset(fields):
            reasons.append(_clause(explanation, row, fields, amount > 0))
            named |= set(fields)
    if ordered and -sign * ordered[-1][1] >= HALF * most > 0 and not named.issuperset(ordered[-1][0]):
        against = ", although " + _clause(explanation, row, ordered[-1][0], sign < 0)
    prediction = float(explanation.prediction[row])
    task = explanation.subject.settings.task
    number = prediction_text(prediction, task)
    if not reasons:
        return f"{number}, as for the rows it is compared with: no value changes it"
    odd = task != "binary" or (prediction > 0.5) != (sign > 0)  # the number alone does not say which way the reasons go
    usual = f", {'more' if sign > 0 else 'less'} than usual" if odd else ""
    *first, last = reasons
    joined = f"{', '.join(first)}, and {last}" if first else last
    return f"{number}{usual}, mainly because {joined}{against}"


def prediction_text(share: float, task: Task) -> str:
    """A probability as a percentage, with more digits near 0 and 1; a number of a regression with four digits.

    >>> [prediction_text(p, "binary") for p in (0.8234, 0.041, 0.00321, 0.99996, 1e-7)]
    ['82 %', '4.1 %', '0.32 %', 'above 99.99 %', 'below 0.01 %']
    """
    if task != "binary":
        return f"{share:.4g}"
    if share < 1e-4 or share > 1 - 1e-4:
        return "below 0.01 %" if share < 0.5 else "above 99.99 %"
    near = min(share, 1 - share)
    return f"{100 * share:.{0 if near >= 0.1 else 1 if near >= 0.01 else 2}f} %"


def _parts(explanation: "Explanation", row: int) -> list[tuple[tuple[int, ...], float]]:
    """Fields or pairs with their parts of the score, compared with the background rows."""
    subject = explanation.subject
    singles = [(field,) for field in range(len(subject.fields))]
    if explanation.method != "terms":
        return list(zip(singles, explanation.contributions[row].tolist(), strict=True))
    found: list[tuple[tuple[int, ...], float]] = []
    for name, fields in (("first_order", singles), ("pairs", subject.pairs)):
        if name in subject.terms.added:
            own, usual = subject.terms.added[name][row], subject.background_terms.added[name].mean(0)
            found += zip(fields, (own - usual).tolist(), strict=True)
    return found


def _clause(explanation: "Explanation", row: int, fields: tuple[int, ...], up: bool) -> str:
    schema, values = explanation.subject.schema, explanation.subject.values.row(row)
    levels = [explanation.subject.levels.get(f.name, {row: ""})[row] for f in schema.fields]
    words = [_Value(schema, f, values[f], levels[f]) for f in fields]
    if len(words) == 1:
        return words[0].clause(up)
    user, item = sorted(words, key=lambda one: not one.is_id("user"))
    if user.is_id("user") and schema.fields[item.field].role == "item":
        return f"this user {'likes' if up else 'does not like'} {item.phrase}"
    return f"{words[0].phrase} goes {'well' if up else 'badly'} with {words[1].phrase}"


class _Value:
    """A field's value in words."""

    def __init__(self, schema: Schema, field: int, value: str, level: str) -> None:
        self.schema, self.field, self.level = schema, field, level
        self.name = schema.fields[field].name.replace("_", " ")
        self.unseen = schema.fields[field].cell == "category" and value.endswith(UNSEEN)
        value = value.removesuffix(UNSEEN) if self.unseen else value
        self.absent, self.value = value == ABSENT, value if len(value) <= LONGEST else value[: LONGEST - 1] + "…"

    def is_id(self, role: str) -> bool:
        """Whether it is the id of a user or item."""
        return self.schema.fields[self.field].column == named_id(role, self.schema)  # type: ignore[arg-type]

    @property
    def phrase(self) -> str:
        """The value as a noun."""
        for role in ("user", "item"):
            if self.is_id(role):
                return f"this {role}"
        if self.absent:
            return f"a missing {self.name}"
        if self.level:
            return f"a {self.level} {self.name} ({self.value})"
        return f"the {'new ' if self.unseen else ''}{self.name} {self.value}"

    def clause(self, up: bool) -> str:
        """The value as a main clause."""
        for role in ("user", "item"):
            if self.is_id(role):
                high = "high" if up else "low"
                return f"this {role}{' is new' if self.unseen else f'’s scores are {high} in general'}"
        if self.absent:
            return f"the {self.name} is missing"
        if self.level:
            return f"the {self.name} is {self.level} ({self.value})"
        are = "are" if self.schema.fields[self.field].cell == "list" and self.name.endswith("s") else "is"
        return f"the {self.name} {are} {self.value}" + (", which is new to the model" if self.unseen else "")
