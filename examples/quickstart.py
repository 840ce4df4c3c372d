"""A recommender from a pandas frame of one's own: fit, evaluate, recommend, save, load."""

import tempfile

from fieldwise import (
    AFM,
    Bag,
    Categorical,
    IdColumns,
    Label,
    Recommender,
    Schema,
    TrainingSettings,
    simulate,
)

log = simulate(20_000, users=200, items=100).to_pandas()  # any frame with one row an event will do
schema = Schema(
    fields=(
        Categorical("user_id", role="user"),
        Categorical("age_group", role="user"),
        Categorical("item_id", role="item"),
        Bag("genres", role="item"),
        Categorical("device"),
    ),
    label=Label("liked"),
    user="user_id",
    item="item_id",
    time="timestamp",
)
past, future = log[:16_000], log[16_000:]  # the simulated log is in order of time

recommender = Recommender(
    schema, AFM(embedding_dim=8), training=TrainingSettings(epochs=5), valid_by="time"
)
recommender.fit(past)
metrics = recommender.evaluate(future)
print(f"on the future: AUC {metrics['auc']:.3f}, logloss {metrics['logloss']:.3f}")

print(recommender.recommend(past, IdColumns(title="title"), past["user_id"].iloc[-1], n=5))

with tempfile.TemporaryDirectory() as folder:
    recommender.save(folder)
    again = Recommender.load(folder)
    print("as saved:", (again.predict(future) == recommender.predict(future)).all())
