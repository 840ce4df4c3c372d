"""`fieldwise recommend`: a file with items for every user of a log."""

import polars as pl

from fieldwise import Bundle


def test_everybody_gets_items_in_a_file_as_in_python(done, bundle, log, tmp_path):
    newcomer = log.head(3).with_columns(pl.lit("new").alias("user"), pl.lit("i9").alias("item"))
    pl.concat([log, newcomer]).write_csv("later.csv")
    out, err = done("recommend", bundle, "--log", "later.csv", "--k", "3", "--out", "top.parquet", "--keep-seen")
    assert out == ""
    result = pl.read_parquet(tmp_path / "top.parquet")
    assert result.columns == ["user", "item", "rank", "score", "source"]
    assert (
        "30 recommendations written to top.parquet (user, item, rank, score, source): 9 users by the model, "
        "1 whom it does not know by popularity"
    ) in err
    assert result.filter(pl.col("source") == "popularity")["user"].unique().to_list() == ["new"]
    expected = Bundle.load(bundle).recommend(log="later.csv", n=3, exclude_seen=False)
    assert result.equals(expected)
    err = done("recommend", bundle, "--log", "later.csv", "--out", "u.csv", "--user", "u1", "--user", "x")[1]
    own = pl.read_csv(tmp_path / "u.csv")
    assert own["user"].unique(maintain_order=True).to_list() == ["u1", "x"]
