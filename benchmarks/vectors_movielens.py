"""MovieLens-1M with vectors of titles and genres (TF-IDF and SVD), on movies that no training row has.

    python -m benchmarks.vectors_movielens FOLDER [--rows 300000] [--seeds 2]

FOLDER has ratings, users.dat and movies.dat. The label is a rating of 4 or more. A fifth of the
movies, drawn by the seed, is in no training row; AUCs are of their ratings by users with training
rows, and of a tenth of the other ratings.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import polars as pl
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer

from fieldwise import FM, Categorical, Field, Label, Recommender, Schema, Vector
from fieldwise.data.read.public_sets import load_movielens
from fieldwise.evaluation import auc

NUMBERS = 64
COLD_SHARE = 0.2
TEST_SHARE = 0.1


def write_vectors(movies: pl.DataFrame, path: Path) -> None:
    """Write the vector of each movie's title and genres."""
    texts = (movies["title"] + " " + movies["genres"].str.replace_all(r"\|", " ")).to_list()
    tfidf = TfidfVectorizer(min_df=2, sublinear_tf=True).fit_transform(texts)
    vectors = TruncatedSVD(NUMBERS, random_state=0).fit_transform(tfidf)
    np.save(path, vectors.astype(np.float32))
    np.save(path.with_suffix(".ids.npy"), movies["movie_id"].to_numpy())


def aucs(parts: list[pl.DataFrame], more: list[Field], seed: int) -> list[float]:
    """The AUC of each part but the first, which trains an FM of users, movies and `more`."""
    fields = [Categorical("user_id", role="user"), Categorical("movie_id", role="item"), *more]
    schema = Schema(fields=tuple(fields), label=Label("liked"), user="user_id", item="movie_id")
    bundle = Recommender(schema, FM(), seed=seed).fit(parts[0]).bundle_
    return [auc(part["liked"].to_numpy(), bundle.predict(part)) for part in parts[1:]]


def main() -> None:
    """Print the AUCs with and without vectors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--seeds", type=int, default=2)
    given = parser.parse_args()
    ratings = next(given.folder.glob("ratings.*"))
    log = load_movielens(ratings, given.folder / "users.dat", given.folder / "movies.dat")
    log = log.with_columns(liked=(pl.col("rating") >= 4).cast(pl.Int64))
    movies = log.unique("movie_id").sort("movie_id")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "movies.npy"
        write_vectors(movies, path)
        vector = Vector("text", role="item", column="movie_id", vectors=str(path))
        for seed in range(given.seeds):
            rng = np.random.default_rng(seed)
            cold = movies["movie_id"].sample(fraction=COLD_SHARE, seed=seed)
            is_cold = pl.col("movie_id").is_in(cold.implode())
            rows = log.sample(min(given.rows, log.height), seed=seed)
            warm = rows.filter(~is_cold)
            is_test = pl.Series(rng.random(warm.height) < TEST_SHARE)
            parts = [warm.filter(~is_test), rows.filter(is_cold), warm.filter(is_test)]
            for name, more in {"without": [], "with": [vector]}.items():
                cold_auc, warm_auc = aucs(parts, more, seed)
                print(
                    f"seed {seed}, {name} vectors: AUC of {parts[1].height:,} ratings of new movies {cold_auc:.4f}, "
                    f"of {parts[2].height:,} others {warm_auc:.4f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
