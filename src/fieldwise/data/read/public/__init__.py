"""Public data sets: sources, licence terms, and readers of their official formats."""

from fieldwise.data.read.public.adult import ADULT
from fieldwise.data.read.public.avazu import AVAZU, AVAZU_SAMPLE
from fieldwise.data.read.public.book_crossing import BOOK_CROSSING
from fieldwise.data.read.public.criteo import CRITEO, CRITEO_SAMPLE
from fieldwise.data.read.public.frappe import FRAPPE
from fieldwise.data.read.public.movielens import MOVIELENS_1M
from fieldwise.data.read.public.sets import Member, PublicSet, RemoteFile

__all__ = ["PUBLIC_SETS", "Member", "PublicSet", "RemoteFile"]

PUBLIC_SETS: dict[str, PublicSet] = {
    public_set.name: public_set
    for public_set in (MOVIELENS_1M, FRAPPE, ADULT, CRITEO, CRITEO_SAMPLE, AVAZU, AVAZU_SAMPLE, BOOK_CROSSING)
}
