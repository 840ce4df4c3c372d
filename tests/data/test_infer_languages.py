"""Tables as ten languages keep them: headers, words of labels, dates, amounts and delimiters, read without options."""

import datetime as dt
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fieldwise import infer_schema

EURO, BARE, YEN, YUAN = (
    "{whole},{cents:02d} €",
    "{whole},{cents:02d}",
    "¥{whole}",
    "{whole}.{cents:02d}元",
)
# delimiter; user, item, label, time, price, flag, category, quantity; positive, negative; price;
# time
TABLES = (
    (
        ";",
        "Kunden-ID Artikel_Nr Gekauft Zeitpunkt Preis Neukunde Warengruppe Alter",
        "ja nein",
        EURO,
        "%d.%m.%Y %H:%M",
    ),
    (
        ";",
        "identifiant_client réf_produit acheté date_heure prix abonné catégorie âge",
        "oui non",
        EURO,
        "%d/%m/%Y",
    ),
    (
        ";",
        "id_usuario código_artículo compra fecha precio socio categoría edad",
        "sí no",
        BARE,
        "%d/%m/%Y",
    ),
    (
        ";",
        "codigo_cliente id_produto comprou data_hora preço assinante categoria idade",
        "sim não",
        BARE,
        "%d/%m/%Y",
    ),
    (
        ";",
        "codice_utente id_articolo cliccato data prezzo iscritto reparto età",
        "sì no",
        EURO,
        "%d/%m/%Y",
    ),
    (
        ";",
        "klantnummer artikelnummer gekocht tijdstip prijs abonnee categorie leeftijd",
        "ja nee",
        EURO,
        "%d-%m-%Y",
    ),
    (
        ";",
        "nr_klienta id_produktu kupił czas cena subskrypcja kategoria wiek",
        "tak nie",
        BARE,
        "%Y-%m-%d %H:%M:%S",
    ),
    (
        ";",
        "müşteri_no ürün_kodu satın_aldı tarih fiyat üye_mi kategori yaş",
        "evet hayır",
        BARE,
        "%d.%m.%Y",
    ),
    (
        ",",
        "会員ID 商品番号 購入 日時 価格 新規 カテゴリ 年齢",
        "はい いいえ",
        YEN,
        "%Y/%m/%d %H:%M",
    ),
    (
        ",",
        "用户ID 商品编号 是否购买 时间 价格 新用户 类别 年龄",
        "是 否",
        YUAN,
        "%Y-%m-%d %H:%M:%S",
    ),
)
OTHER_NAMES = (  # users and items by words that are none for ids
    ("Kd-Nr Art.-Nr. Reaktion Datum Betrag Newsletter Filiale Anzahl", "Kauf,kein Kauf"),
    ("matricola cod_art esito data importo nuovo negozio età", "venduto,non venduto"),
    ("pesel towar zakup data kwota nowy sklep ilość", "tak,nie"),
    ("会员号 货号 下单 下单时间 金额 新客 门店 件数", "是,否"),
)


def written(
    path: Path, mark: str, names: list[str], words: list[str], price: str, form: str
) -> Path:
    """1,500 rows of 150 users and 90 items; the label depends on both."""
    rng = np.random.default_rng(1)
    user_weight, item_weight = rng.lognormal(0, 1, 150), rng.lognormal(0, 1.2, 90)
    user = rng.choice(150, 1500, p=user_weight / user_weight.sum())
    item = rng.choice(90, 1500, p=item_weight / item_weight.sum())
    users, items = (
        rng.choice(90_000, 150, replace=False) + 10_000,
        rng.choice(9000, 90, replace=False) + 1000,
    )
    seconds = np.sort(rng.integers(1_700_000_000, 1_725_000_000, 1500)).tolist()
    cents = rng.lognormal(8, 1.2, 90).astype(int)[item].tolist()
    score = rng.normal(0, 1, 150)[user] + rng.normal(0, 1, 90)[item]
    liked = rng.random(1500) < 1 / (1 + np.exp(-score))
    is_new, ages = rng.random(150) < 0.3, rng.integers(18, 80, 150)
    cells = [
        [f"K{k}" for k in users[user]],
        items[item],
        [words[0] if one else words[1] for one in liked],
        [dt.datetime.fromtimestamp(second, dt.UTC).strftime(form) for second in seconds],
        [price.format(whole=amount // 100, cents=amount % 100) for amount in cents],
        ["1" if one else "" for one in is_new[user]],
        ["abc"[k % 3] * 3 for k in item],
        ages[user],
    ]
    pl.DataFrame(dict(zip(names, cells, strict=True))).write_csv(path, separator=mark)
    return path


@pytest.mark.parametrize(("mark", "header", "words", "price", "form"), TABLES)
def test_a_table_is_read_in_its_language(tmp_path: Path, mark, header, words, price, form) -> None:
    names = header.split()
    schema = infer_schema(
        written(tmp_path / "t.csv", mark, names, words.split(), price, form)
    ).schema
    assert (schema.user, schema.item, schema.time) == (names[0], names[1], names[3])
    assert (schema.label.column, schema.label.positive_values) == (names[2], (words.split()[0],))
    kinds = {f.column: f.kind for f in schema.fields}
    assert [kinds.get(name) for name in names] == [
        "categorical", "categorical", None, None, "numeric", "categorical", "categorical", "numeric",
    ]  # fmt: skip


@pytest.mark.parametrize(("header", "words"), OTHER_NAMES)
def test_ids_under_other_names_are_found_or_asked_about(tmp_path: Path, header, words) -> None:
    names = header.split()
    guess = infer_schema(
        written(tmp_path / "t.csv", ";", names, words.split(","), BARE, "%d.%m.%Y")
    )
    for side, name in (("user", names[0]), ("item", names[1])):
        is_set = getattr(guess.schema, side) == name
        assert is_set or (guess.possible_ids.get(side) == name and name in guess.doubts)
    assert (guess.schema.label.column, guess.schema.time) == (names[2], names[3])
