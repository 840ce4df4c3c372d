"""Inferring schemas of tables as people keep them: words and names in several languages, gaps, marks and amounts."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import polars as pl
import pytest

from fieldwise import Categorical, DataError, Encoder, Label, SchemaError, as_table, infer_schema
from fieldwise.schema.ids import id_rank, kind_of_name, role_of


def rows_of(**columns: object) -> pl.DataFrame:
    """300 rows of a log with more columns."""
    rng = np.random.default_rng(0)
    base = {
        "user_id": [f"u{k}" for k in rng.integers(0, 40, 300)],
        "item_id": [f"i{k}" for k in rng.integers(0, 25, 300)],
    }
    return pl.DataFrame({**base, **columns})


@pytest.mark.parametrize(
    ("words", "positive", "doubted"),
    [
        ("like pass superlike", ("like",), "superlike"),
        ("like pass", ("like",), ""),
        ("pass fail", ("pass",), ""),
        ("passed not_passed", ("passed",), ""),
        ("pass fail retry", ("pass",), "retry"),
        ("buy home search", ("buy",), "search"),
        ("pass skip", ("pass",), "pass"),
    ],
)
def test_a_word_is_positive_beside_its_opposite(
    words: str, positive: tuple[str, ...], doubted: str
) -> None:
    cells = (words.split() * 300)[:300]
    guess = infer_schema(rows_of(action=cells), label="action")
    assert guess.schema.label == Label("action", positive_values=positive)
    assert bool(guess.doubts.get("action")) == bool(doubted)
    assert doubted in guess.doubts.get("action", "")


def test_words_that_are_all_positive_are_no_label() -> None:
    log = rows_of(action=["buy", "click"] * 150)
    with pytest.raises(
        SchemaError,
        match=r"needs values that are not positive: .*'buy', 'click'.* give the positive",
    ):
        infer_schema(log, label="action")
    assert infer_schema(log).only_positives


def test_each_word_of_unknown_meaning_is_named_with_its_rows() -> None:
    guess = infer_schema(
        rows_of(status=["ok", "failed"] * 100 + ["later"] * 60 + ["hold"] * 40), label="status"
    )
    assert "the meaning of 'later' (60 rows), 'hold' (40 rows)" in guess.doubts["status"]


def test_one_value_or_empty_is_a_field_and_one_value_alone_is_none() -> None:
    rng = np.random.default_rng(1)
    flag = pl.Series("flag", [1]).extend_constant(None, 1).gather(rng.integers(0, 2, 300))
    guess = infer_schema(rows_of(flag=flag, one=[1] * 300, clicked=rng.integers(0, 2, 300)))
    assert guess.schema.fields[2:] == (Categorical("flag"),)
    assert guess.notes["one"] == "omitted: it is constant"
    leak = flag.is_not_null().cast(pl.Int64)
    guess = infer_schema(rows_of(flag=flag, clicked=leak))
    assert "empty except where the label is positive" in guess.notes["flag"]


def test_a_header_with_a_number_is_a_header() -> None:
    log = rows_of(liked=[0, 1] * 150).with_columns(pl.Series("2023", np.arange(300) % 7 / 7))
    assert infer_schema(log).schema.label == Label("liked")
    bare = log.rename({"user_id": "u7", "item_id": "i9", "liked": "1"})
    with pytest.raises(
        SchemaError, match=r"look like a row \(u7, i9, 1, 2023\).* give the names of its columns"
    ):
        infer_schema(bare)


@pytest.mark.parametrize(
    ("user", "item", "price"),
    [
        ("Kundennummer", "Artikelnummer", "Gesamtpreis"),
        ("id_client", "code_produit", "quantité"),
        ("id_cliente", "codigo_articulo", "precio"),
        ("codice_cliente", "codice_articolo", "prezzo"),
        ("codigo_do_cliente", "codigo_do_produto", "quantidade"),
        ("nr_klienta", "kod_produktu", "ilość"),
        ("код_клиента", "номер_товара", "цена"),
        ("会員番号", "商品コード", "購入金額"),
        ("客户编号", "商品编号", "单价"),
        ("müşteri_no", "ürünKodu", "fiyat"),
    ],
)
def test_names_of_ids_are_known_in_ten_languages(user: str, item: str, price: str) -> None:
    assert (id_rank(user), role_of(user)[0], kind_of_name(user)) == (3, "user", "code")
    assert (id_rank(item), role_of(item)[0], kind_of_name(item)) == (3, "item", "code")
    assert (id_rank(price), kind_of_name(price)) == (0, "quantity")
    rng = np.random.default_rng(2)
    users, items, paid = (
        rng.integers(40_000, 40_400, 2000),
        rng.integers(7000, 7060, 2000),
        rng.gamma(2, 20, 2000),
    )
    liked = rng.integers(0, 2, 2000)
    schema = infer_schema(
        pl.DataFrame({user: users, item: items, price: paid.round(2), "liked": liked})
    ).schema
    assert (schema.user, schema.item) == (user, item)
    assert [f.kind for f in schema.fields] == ["categorical", "categorical", "numeric"]


@pytest.mark.parametrize(
    "name", ["number_of_users", "anzahl_kunden", "nr_of_items", "numero_clienti", "n_clients"]
)
def test_a_count_of_users_is_no_id(name: str) -> None:
    assert id_rank(name) == 0


def test_a_declared_category_is_a_category() -> None:
    rng = np.random.default_rng(3)
    code, liked = rng.integers(0, 90, 3000), rng.integers(0, 2, 3000)
    as_numbers = pd.DataFrame({"user_id": rng.integers(0, 99, 3000), "shelf": code, "liked": liked})
    declared = as_numbers.assign(shelf=pd.Categorical(code))
    kinds = [infer_schema(frame).schema.fields[1].kind for frame in (as_numbers, declared)]
    assert kinds == ["numeric", "categorical"]
    for kind in (pl.Categorical, pl.Enum([str(k) for k in range(90)])):
        frame = pl.DataFrame(as_numbers).with_columns(pl.col("shelf").cast(pl.String).cast(kind))
        assert infer_schema(frame).schema.fields[1].kind == "categorical"
    texts = as_table(
        pd.DataFrame(
            {"a": pd.Categorical([2.0, 0.5, None]), "b": pd.Categorical([True, False, True])}
        )
    )
    assert texts.cast(pl.String).to_dict(as_series=False) == {
        "a": ["2", "0.5", None],
        "b": ["true", "false", "true"],
    }


def display_ads(columns: int, rows: int = 1500) -> list[pl.Series]:
    """Hashed categories of long tails, as Criteo's: every third one groups the values of the one before it."""
    rng = np.random.default_rng(4)
    series = []
    value = np.empty(0, np.int64)
    for k in range(columns):
        weight = rng.lognormal(0, 1.5, 100 + 10 * k)
        grouped = k % 3 == 2
        value = value // 3 if grouped else rng.choice(len(weight), rows, p=weight / weight.sum())
        series.append(
            pl.Series([f"{(v + 1) * 2_654_435_761 * (k + 3) % 2**32:08x}" for v in value.tolist()])
        )
    return series


@pytest.mark.parametrize(
    "names",
    [
        [f"C{k}" for k in range(1, 21)],
        [f"{word}_key" for word in "abcdefghijklmnopqrst"],
        ["shade", "tier", *(f"C{k}" for k in range(1, 19))],
    ],
)
def test_many_columns_that_look_alike_are_no_ids(names: list[str]) -> None:
    log = pl.DataFrame(
        [cells.alias(name) for name, cells in zip(names, display_ads(20), strict=True)]
    )
    schema = infer_schema(
        log.with_columns(label=pl.Series(np.random.default_rng(5).integers(0, 2, 1500)))
    ).schema
    assert (schema.user, schema.item, schema.grouping) == (None, None, None)
    assert {f.role for f in schema.fields} == {"context"}


def test_beside_many_columns_the_named_ids_are_found() -> None:
    rng = np.random.default_rng(6)
    columns = {f"C{k}": cells for k, cells in enumerate(display_ads(10))}
    ids = {"user_id": rng.integers(0, 300, 1500), "item_id": rng.integers(0, 200, 1500)}
    schema = infer_schema(
        pl.DataFrame({**columns, **ids, "label": rng.integers(0, 2, 1500)})
    ).schema
    assert (schema.user, schema.item) == ("user_id", "item_id")


@pytest.mark.parametrize(
    ("cells", "form", "check"),
    [
        ("€ {},{:02d}", "€ 1.234,5", False),
        ("{}.{:02d} kg", "1,234.5 kg", False),
        ("¥{},0{:02d}", "¥ 1,234.5", True),
        ("{}.0{:02d} €", "1.234,5 €", True),
    ],
)
def test_amounts_are_numbers_whose_unit_is_said(cells: str, form: str, check: bool) -> None:
    amount = [cells.format(1 + k % 90, k % 97) for k in range(300)]
    guess = infer_schema(rows_of(amount=amount, clicked=[0, 1] * 150))
    assert guess.schema.fields[2].number_format == form
    assert "read without the unit" in guess.notes["amount"]
    assert bool(guess.doubts.get("amount")) == check


def test_different_units_are_asked_about() -> None:
    guess = infer_schema(
        rows_of(amount=[f"{('€', '$')[k % 2]} {k}.5" for k in range(300)], clicked=[0, 1] * 150)
    )
    assert "different units ('€', '$'): convert" in guess.doubts["amount"]


@pytest.mark.parametrize("mark", ["NULL", "NA", "-", "?", "\\N", "none"])
def test_marks_among_numbers_and_labels_are_missing_and_said(mark: str) -> None:
    rng = np.random.default_rng(7)
    price = [mark if k % 50 == 0 else f"{x:.2f}" for k, x in enumerate(rng.gamma(2, 20, 300))]
    paid = [f"{1_700_000_000 + 97 * k}" if k % 2 else mark for k in range(300)]
    land = ["NA" if k % 3 == 0 else "FR" for k in range(300)]
    guess = infer_schema(rows_of(price=price, paid_at=paid, land=land, clicked=[0, 1] * 150))
    assert {f.name: f.kind for f in guess.schema.fields[2:]} == {
        "price": "numeric",
        "land": "categorical",
    }
    assert "empty except where the label is positive" in guess.notes["paid_at"]
    assert guess.marks == {"price": {mark: 6}, "paid_at": {mark: 150}}
    assert f"{mark!r} (6 cells) read as missing" in guess.notes["price"]
    labelled = infer_schema(
        rows_of(x=[k % 3 for k in range(300)], y=["0", "1", mark] * 100), label="y"
    )
    assert labelled.schema.label == Label("y", drop_values=(mark,))
    assert "100 of 300 rows have no label" in labelled.doubts["y"]


def test_blank_cells_among_numbers_are_missing() -> None:
    rng = np.random.default_rng(2)
    price = [f"{value:.2f}" for value in rng.gamma(2, 20, 300)]
    price[::40] = [" "] * 8
    guess = infer_schema(rows_of(price=price, clicked=rng.integers(0, 2, 300)))
    assert [f.kind for f in guess.schema.fields] == ["categorical", "categorical", "numeric"]
    assert "' ' (8 cells) read as missing" in guess.notes["price"]
    named = infer_schema(rows_of(word=["a", " ", "b"] * 100, clicked=rng.integers(0, 2, 300)))
    assert named.schema.fields[2] == Categorical("word")


@pytest.mark.parametrize(
    ("cells", "found"),
    [
        (lambda k: "k.A." if k % 30 == 0 else f"{k / 7:.2f}", "10 of 300 cells of column 'amount' are no numbers"),
        (lambda k: "#DIV/0!" if k % 30 == 0 else f"{k % 90 / 7:.1f}", 'missing = ["#DIV/0!"]'),
        (lambda k: "k.A." if k % 30 == 0 else f"{k / 7:.2f}".replace(".", ","), 'missing = ["k.A."]'),
        (lambda k: f"(${k}.50)" if k % 3 == 0 else f"${k}.50", "a form that is not read, such as '($0.50)'"),
        (lambda k: f"−{k % 90}" if k % 3 == 0 else f"{k % 90}", "a form that is not read, such as '−0'"),
        (lambda k: f"₹{1 + k % 9},{10 + k % 90},{100 + k}", "a form that is not read, such as '₹1,10,100'"),
        (lambda k: f"{k}.5-" if k % 3 == 0 else f"{k}.5", "a form that is not read, such as '0.5-'"),
    ],
)  # fmt: skip
def test_numbers_that_are_not_read_are_asked_about(cells: Callable[[int], str], found: str) -> None:
    clicked = np.random.default_rng(3).integers(0, 2, 300)
    guess = infer_schema(rows_of(amount=[cells(k) for k in range(300)], clicked=clicked))
    assert found in guess.doubts["amount"]
    assert all(f.kind == "categorical" for f in guess.schema.fields), (
        "no bag of the parts of a number"
    )


def test_numbers_in_a_list_are_no_amounts() -> None:
    rng = np.random.default_rng(4)
    tags = ["|".join(map(str, rng.choice(90, 1 + k % 2, replace=False))) for k in range(300)]
    guess = infer_schema(rows_of(tags=tags, clicked=rng.integers(0, 2, 300)))
    assert guess.schema.fields[2].kind == "bag"
    assert "tags" not in guess.doubts


def test_a_label_of_a_few_numbers_around_0_is_asked_about() -> None:
    guess = infer_schema(rows_of(label=[-1, 0, 1] * 100), label="label")
    assert guess.schema.label.task == "regression"
    assert "-1 to 1 of column 'label' may be classes" in guess.doubts["label"]


@pytest.mark.parametrize(
    ("amount", "rest", "form"),
    [
        ("{},{:02d} €", ["auf Anfrage"] * 3, "1.234,5 €"),
        ("{},{:02d}", ["12.50", "k. A.", "#REF!"], "1.234,5"),
        ("R$ 1.{:03d},{:02d}", ["grátis"], "R$ 1.234,5"),
    ],
)
def test_a_few_cells_that_are_no_amounts_leave_a_number(
    amount: str, rest: list[str], form: str
) -> None:
    cells = [amount.format(100 + k % 700, k % 100) for k in range(300)]
    for place, text in enumerate(rest):
        cells[100 * place + 7] = text
    log = rows_of(paid=cells, liked=[0, 1] * 150)
    guess = infer_schema(log)
    field = next(f for f in guess.schema.fields if f.column == "paid")
    assert (field.kind, getattr(field, "number_format", None)) == ("numeric", form)
    assert f"{len(rest):,} of 300 cells of column 'paid' are no numbers" in guess.doubts["paid"]
    mended = log.with_columns(pl.col("paid").replace(dict.fromkeys(rest)))
    Encoder.fit(mended, guess.schema)
    many = rows_of(
        paid=[text if k % 50 else rest[0] for k, text in enumerate(cells)], liked=[0, 1] * 150
    )
    assert next(f for f in infer_schema(many).schema.fields if f.column == "paid").kind != "numeric"


def test_a_frame_of_a_type_that_arrow_lacks_is_a_sentence() -> None:
    frame = rows_of(clicked=[0, 1] * 150).to_pandas().assign(z=1j)
    with pytest.raises(DataError, match=r"the pandas frame's column 'z' does not .*Unsupported"):
        infer_schema(frame)


def test_a_reason_is_never_empty() -> None:
    rng = np.random.default_rng(0)
    counts = {f"n{k}": rng.integers(0, 4, 300) for k in range(20)}
    notes = infer_schema(rows_of(**counts, clicked=rng.integers(0, 2, 300))).notes
    assert any("(nothing tells)" in note for note in notes.values())
    assert not any("()" in note for note in notes.values())


@pytest.mark.parametrize("side", ["user", "item"])
def test_a_column_of_lists_holds_no_ids(side: str) -> None:
    log = rows_of(tags=[["a", "b"]] * 300, clicked=[0, 1] * 150)
    with pytest.raises(SchemaError, match=f"{side} ids must hold one id: column 'tags'.*List"):
        infer_schema(log, **{side: "tags"})


@pytest.mark.parametrize("dtype", [pl.UInt64, pl.Int128])
def test_integers_beyond_64_bits_are_the_text_of_their_digits(dtype: type[pl.DataType]) -> None:
    digits = [str(10**19 + k % 60) for k in range(300)]
    log = rows_of(ad=digits, clicked=[0, 1, 1] * 100)
    written = infer_schema(log)
    guess = infer_schema(log.with_columns(pl.col("ad").cast(dtype)))
    assert guess.schema == written.schema
    assert guess.notes == written.notes
    small = rows_of(ad=np.arange(300) % 7, clicked=[0, 1, 1] * 100)
    narrow = infer_schema(small.with_columns(pl.col("ad").cast(dtype)))
    assert narrow.schema == infer_schema(small).schema


def test_whole_numbers_with_nan_are_no_crash():
    ages = [float(20 + k % 40) if k % 9 else float("nan") for k in range(400)]
    table = pl.DataFrame({"age": ages, "city": ["Oslo", "Rome"] * 200, "liked": [0, 1, 1, 0] * 100})
    names = [field.name for field in infer_schema(table, label="liked").schema.fields]
    assert names == ["age", "city"]
