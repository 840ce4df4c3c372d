"""`fieldwise recommend`: a file with items for every user of a log."""

import polars as pl

from fieldwise import Bundle


def test_everybody_gets_items_in_a_file_as_in_python(done, bundle, log, tmp_path):
    newcomer = log.head(3).with_columns(pl.lit("new").alias("user"), pl.lit("i9").alias("item"))
    pl.concat([log, newcomer]).write_csv("later.csv")
    out, err = done(
        "recommend",
        bundle,
        "--log",
        "later.csv",
        "--k",
        "3",
        "--out",
        "top.parquet",
        "--include-seen",
    )
    assert out == ""
    assert "excluded" not in err
    result = pl.read_parquet(tmp_path / "top.parquet")
    assert result.columns == ["user", "item", "rank", "prediction", "source"]
    assert (
        "30 recommendations written to top.parquet (user, item, rank, prediction, source): 9 users by the model, "
        "1 whom it does not know by popularity"
    ) in err
    assert result.filter(pl.col("source") == "popularity")["user"].unique().to_list() == ["new"]
    expected = Bundle.load(bundle).recommend("later.csv", n=3, exclude_seen=False)
    assert result.equals(expected)
    err = done(
        "recommend", bundle, "--log", "later.csv", "--out", "u.csv", "--user", "u1", "--user", "x"
    )[1]
    own = pl.read_csv(tmp_path / "u.csv")
    assert own["user"].unique(maintain_order=True).to_list() == ["u1", "x"]


def test_what_is_excluded_is_said_and_is_what_serve_excludes(
    done, fieldwise, bundle, log, tmp_path
):
    log.write_csv("log.csv")
    options = {"": "positive", "--exclude-seen": True, "--include-seen": False}
    options_words = "(--exclude-seen: of all rows, --include-seen: none)"
    words = {
        "": f"items of a user's rows where “click” is 1 are excluded {options_words}",
        "--exclude-seen": "items of a user's rows are excluded (--include-seen keeps them)",
        "--include-seen": "",
    }
    for number, (option, seen) in enumerate(options.items()):
        out = f"{number}.parquet"
        given = [option] if option else []
        err = done("recommend", bundle, "--log", "log.csv", "--out", out, "--k", 99, *given)[1]
        assert words[option] in err
        assert ("excluded" in err) == bool(seen)
        expected = Bundle.load(bundle).recommend("log.csv", n=99, exclude_seen=seen)
        assert pl.read_parquet(tmp_path / out).equals(expected)


def test_a_limit_is_of_a_column_of_the_items(fieldwise, bundle, log):
    log.write_csv("log.csv")
    for column in ("click", "user"):
        given = ["--log", "log.csv", "--out", "limited.csv", "--limit", f"{column}=1"]
        code, _, said = fieldwise("recommend", bundle, *given)
        assert code == 2
        assert f"limits must name a column of the items, found '{column}'" in said
