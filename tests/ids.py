"""The fields of ids that many schemas of tests have."""

from fieldwise import Categorical

USER, ITEM = Categorical("user", role="user"), Categorical("item", role="item")
