"""What column names tell of roles, label, time and kind: a prior that the rows may overturn."""

import re
import unicodedata
from typing import Literal

from fieldwise.schema import Role

LABELS = ("label", "click", "clicked", "like", "liked", "rating", "stars", "target", "y")
_LIKELY = """
bought buy purchase purchased ordered conversion converted churn churned exited class outcome overall score response
income survived lbl returned recommended recommend skipped skip finished completed applied accepted hired won win
cancelled canceled default fraud fail failed failure saved kept claim correct late satisfied reordered played watched
clicks event event_type action grade points
klick geklickt gekauft kauf bewertung sterne punkte retoure ausfall gefallt clic clique achat achete note avis compra
comprado compro clicado calificacion valoracion puntuacion avaliacao nota voto valutazione acquisto acquistato piaciuto
klik kliknal ocena zakup kupil puan begeni satinaldi beoordeling gekocht betyg kop klikkede kobt
клик кликнул купил куплено покупка оценка рейтинг понравилось κλικ 点击 购买 喜欢 评分 クリック 購入 評価 클릭 구매 평점
نقر اشترى أعجبه
"""
LIKELY_LABELS = tuple(_LIKELY.split())  # labels if there is no other; besides a label they may be fields
TIMES = (
    *("timestamp", "time", "datetime", "date", "ts", "unix_time", "event_time", "event_date", "created_at"),
    *("created", "clicked_at", "viewed_at", "order_date", "purchase_date", "review_time", "unix_review_time"),
)
HISTORIES = ("history", "hist", "sequence", "seq", "recent", "past", "last", "previous")

_USERS = """
user users uid member customer client visitor buyer viewer reader reviewer subscriber player listener guest username
person account shopper cust
kunde kunden nutzer benutzer utilisateur usuario cliente utente uzytkownik gebruiker kullanici musteri пользователь
клиент 用户 ユーザー 사용자 المستخدم
"""
_OF_USERS = """
age gender sex occupation job education income marital relationship race zip zipcode postcode city state country region
history hist workclass
"""
_ITEMS = """
item items iid sku asin isbn ean upc article hotel restaurant venue business place poi recipe show anime game listing
property offer offering podcast movie film product ad ads advert banner creative book song track artist album app video
news
artikel produkt produit producto produto prodotto urun товар 商品 アイテム 상품
"""
_OF_ITEMS = """
campaign title genre genres category categories brand price author publisher director actors release length
duration
"""
ENTITIES = frozenset((_USERS + _ITEMS).split())
_USER, _ITEM = frozenset((_USERS + _OF_USERS).split()), frozenset((_ITEMS + _OF_ITEMS).split())
# Context, even if each user in the table has only one value.
MOMENTARY = frozenset(
    ("hour", "weekday", "day", "month", "week", "minute", "season", "daytime", "weekend", "holiday", "position", "rank")
)
_IDS = frozenset(("id", "ids", "key", "no", "nr", "number", "code"))
_IDS_OF_UNKNOWN = frozenset(("id", "ids", "key", "no", "nr", "number", "uid", "guid", "uuid"))
_CODES = """
id ids uid guid uuid code zip zipcode postcode isbn plz cookie hash type kind group class category genre brand gender
sex occupation job city state country region campaign store shop site device author publisher director artist album
decade session variant
"""
_QUANTITIES = """
age count counts number num qty quantity amount price cost total sum avg mean min max length duration days hours minutes
seconds months years year km kg weight height width size income salary balance clicks views visits times rate ratio
percent pct score points level rank temperature
alter preis anzahl betrag menge prix nombre montant precio cantidad edad prezzo prix idade preco fiyat wiek cena
"""
_CODE_WORDS, _QUANTITY_WORDS = frozenset(_CODES.split()), frozenset(_QUANTITIES.split())


def words_of(name: str) -> list[str]:
    """The words of a column's name, in lower case, without accents.

    >>> words_of("userAge_group2"), words_of("Müşteri-Nr.")
    (['user', 'age', 'group2'], ['musteri', 'nr'])
    """
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    plain = "".join(c for c in unicodedata.normalize("NFKD", parted) if not unicodedata.combining(c)) or parted
    return [w for w in re.split(r"[\W_]+", plain.lower().replace("ı", "i")) if w]


def name_matches(name: str, known: tuple[str, ...]) -> bool:
    """Whether the name, split into words, is one of the known ones."""
    return "_".join(words_of(name)) in known


def is_label_name(name: str, known: tuple[str, ...] = LABELS) -> bool:
    """Whether the name is one of the known ones, with or without an `is` or `has` before it.

    >>> is_label_name("isClicked"), is_label_name("clicks_before")
    (True, False)
    """
    words = words_of(name)
    return "_".join(words[1:] if words[:1] in (["is"], ["has"], ["was"], ["did"]) else words) in known


def role_of(name: str) -> tuple[Role, str]:
    """The role of a column and the reason, from the first known word of its name.

    >>> role_of("movie_id"), role_of("weekday")[0]
    (('item', "its whole name is 'movie'"), 'context')
    """
    words = words_of(name)
    for word in words:
        stem = word.rstrip("0123456789").removesuffix("id") or word
        for role, known in (("user", _USER), ("item", _ITEM)):
            hit = next((w for w in (word, stem) if w in known), None)
            if hit is not None:
                whole = all(w in (word, *_IDS) for w in words)
                return role, f"its {'whole name is' if whole else 'name has'} {hit!r}"  # type: ignore[return-value]
    return "context", "its name indicates neither user nor item"


def kind_of_name(name: str) -> Literal["code", "quantity", ""]:
    """Whether a name tells a code or a quantity; "" if neither.

    >>> [kind_of_name(name) for name in ("visitorid", "n_orders", "user_age", "banana")]
    ['code', 'quantity', 'quantity', '']
    """
    words = words_of(name)
    if not words:
        return ""
    last = words[-1]
    if last in _CODE_WORDS or last in MOMENTARY or id_rank(name) >= 2:
        return "code"
    quantity = last in _QUANTITY_WORDS or not _QUANTITY_WORDS.isdisjoint(words) or words[0] in ("n", "nb", "num")
    return "quantity" if quantity else ""


def id_rank(name: str) -> int:
    """How likely a column's name is an id of users or items, from 3 to 0.

    3: an entity's id (`movie_id`), 2: the entity itself (`movie`), 1: an id of something unknown (`cust_id`), 0:
    anything else (`genre_id`, `age`).

    >>> [id_rank(name) for name in ("movie_id", "movie", "shelf_id", "genre_id", "age")]
    [3, 2, 1, 0, 0]
    """
    words = words_of(name)
    role, reason = role_of(name)
    if role == "context":
        return int(not _IDS_OF_UNKNOWN.isdisjoint(words[-1:]))
    if not any(w in ENTITIES or w.removesuffix("id") in ENTITIES for w in words):
        return 0
    if name.lower().endswith("id") or words[-1] in ("key", "no", "nr", "number", "code"):
        return 3
    return 2 if reason.startswith("its whole name") else 0
