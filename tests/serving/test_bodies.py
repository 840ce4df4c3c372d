"""Limits and errors of bodies; large ones do not block other requests."""

import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving.commands import serving
from serving.conftest import catalogue
from serving.hostile import LARGE_BODIES

from fieldwise.serving.bodies import ExplainRequest, PredictRequest, RecommendRequest
from fieldwise.serving.decode import decoded
from fieldwise.serving.rows import RequestError, text_of

CONTEXT = {"user": "u1", "history": ["i1"], "device": "tv"}
KINDS = {
    "/v1/predict": PredictRequest,
    "/v1/recommend": RecommendRequest,
    "/v1/explain": ExplainRequest,
}


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.floats(allow_nan=False)
    | st.text(max_size=3)
)
CELLS = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner)
)
ROWS = st.dictionaries(st.sampled_from(["a", "b"]), CELLS, max_size=2)
IDS = st.lists(SCALARS, max_size=3)
LIKELY = {
    "rows": st.lists(ROWS, max_size=3),
    "context": ROWS,
    "where": st.dictionaries(st.text(max_size=2), IDS),
}
LIKELY |= {
    "candidates": IDS | st.none(),
    "exclude": IDS,
    "items": IDS,
    "k": st.integers(-1, 3),
    "pairs": st.booleans(),
}
LIKELY |= {
    "user": SCALARS,
    "prerank": CELLS,
    "exclude_seen": st.booleans() | st.just("positive") | CELLS,
    "limits": st.dictionaries(st.text(max_size=2), st.integers(-1, 3)) | CELLS,
    "pinned": st.dictionaries(st.integers(0, 3).map(str), SCALARS) | CELLS,
}


@pytest.mark.parametrize("kind", KINDS.values())
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_what_the_published_form_takes_is_what_is_taken(kind, data):
    """Against the published JSON Schema, as another library reads it."""
    jsonschema = pytest.importorskip(
        "jsonschema", reason="jsonschema is absent: pip install jsonschema"
    )
    names = kind.__struct_fields__
    form = st.fixed_dictionaries({}, optional={name: LIKELY[name] for name in names})
    body = data.draw(form | CELLS | st.dictionaries(st.sampled_from([*names, "other"]), CELLS))
    schema = msgspec.json.schema(kind)
    valid = jsonschema.Draft202012Validator(schema).is_valid(body)
    try:
        result = decode(kind, body)
    except RequestError as e:
        result = str(e)
    if isinstance(result, str):
        is_json = not {"Infinity", "-Infinity", "NaN"} & set(re.findall(r"-?\w+", json.dumps(body)))
        has_infinity = "must be a finite number" in result or (
            "JSON is malformed" in result and not is_json
        )
        assert not valid or has_infinity or has_whole_float(body, names)
        return
    assert valid
    for name, value in body.items():
        if name == "where":
            assert result.where == {
                column: [text_of(one) for one in values] for column, values in value.items()
            }
        elif name == "pinned":
            assert result.pinned == {int(place): text_of(one) for place, one in value.items()}
        elif name in ("candidates", "exclude", "items") and value is not None:
            assert getattr(result, name) == [text_of(one) for one in value]
        else:
            assert getattr(result, name) == (
                text_of(value) if name == "user" and value is not None else value
            )


def has_whole_float(body, names):
    """Whether a number is whole but written with a point, which JSON Schema takes as an integer."""
    return any(isinstance(body.get(name), float) for name in names if name in ("k", "prerank"))


def decode(kind, body, rows=1000, ids=100_000):
    return decoded(json.dumps(body).encode(), kind, rows, ids)


CELL = "must be text, a number, true or false, null or a list of these, found"


@pytest.mark.parametrize(
    ("kind", "body", "said", "field"),
    [
        (
            RecommendRequest,
            {"candidates": ["a", {}]},
            "candidates[1] must be text, a number, true or false, found",
            0,
        ),
        (
            RecommendRequest,
            {"where": {"g": 1}},
            "where.g must be a list, found a whole number",
            "where.g",
        ),
        (
            RecommendRequest,
            {"where": {"f": [1], "g": [1, []]}},
            "where.g[1] must be text, a number, true or false,",
            0,
        ),
        (
            RecommendRequest,
            {"contxt": {}},
            "contxt is not a field of this request: did you mean 'context'",
            "contxt",
        ),
        (RecommendRequest, {"k": 0}, "k must be a whole number of at least 1", "k"),
        (RecommendRequest, {"k": "3"}, "k must be a whole number or null, found text", "k"),
        (
            RecommendRequest,
            {"exclude_seen": "yes"},
            "must be true, false, 'positive' or null",
            "exclude_seen",
        ),
        (
            PredictRequest,
            {"rows": [{}, {"b": [1], "a": [[]]}]},
            "rows[1].a[0] must be text, a number, true or fal",
            0,
        ),
        (
            PredictRequest,
            {"rows": [{}, {"b": 1, "a": {}}]},
            f"rows[1].a {CELL} an object",
            "rows[1].a",
        ),
        (
            PredictRequest,
            {"rows": [1]},
            "rows[0] must be an object, found a whole number",
            "rows[0]",
        ),
        (PredictRequest, {"rows": "x"}, "rows must be a list, found text", "rows"),
        (RecommendRequest, {"context": "x"}, "context must be an object, found text", "context"),
        (RecommendRequest, {"where": {"g": "g1"}}, "where.g must be a list, found text", "where.g"),
        (PredictRequest, {"rows": []}, "rows must be a list that is not empty", "rows"),
        (PredictRequest, {}, "a body must have rows", "rows"),
        (PredictRequest, [], "a body must be a JSON object", "body"),
        (
            RecommendRequest,
            {"where": {"g": [1, "x" * 10_001]}},
            "where.g must be a text of at most 10,000",
            "where.g",
        ),
        (ExplainRequest, {"rows": [{}] * 1001}, "rows must be at most 1,000, found 1,001", "rows"),
    ],
)
def test_the_first_error_names_its_field(kind, body, said, field):
    with pytest.raises(RequestError) as caught:
        decode(kind, body)
    assert said in str(caught.value)
    assert caught.value.field == (field or said.partition(" ")[0])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "a body must be a JSON object"),
        (b'{"rows": [{"a": {}}], "rows": 1}', "must be"),
        (b'{"rows": [{"a": {}}], ' + b"[" * 9000, "must be"),
        (b'{"rows": [{"a": "\xff"}]}', "a body must be text in UTF-8"),
        (b'{"rows": [{"a": NaN}]}', "a body must be JSON: "),
        (b'{"rows": [{"a": ' + b"1" * 5000 + b"}]}", "Integer value out of range"),
    ],
)
def test_bodies_that_are_no_json_objects(text, said):
    with pytest.raises(RequestError, match=said):
        decoded(text, PredictRequest, 1000, 1000)


@pytest.mark.parametrize(
    ("kind", "of", "where"),
    [
        (PredictRequest, lambda n: {"rows": [{"a": 1}] * n}, "rows"),
        (PredictRequest, lambda n: {"rows": [{"a": ["x"] * n}]}, "rows[0].a"),
        (RecommendRequest, lambda n: {"context": {"a": ["x"] * n}}, "context.a"),
        (RecommendRequest, lambda n: {"candidates": ["x"] * n}, "candidates"),
        (RecommendRequest, lambda n: {"exclude": ["x"] * n}, "exclude"),
        # all filters together
        (RecommendRequest, lambda n: {"where": {"a": ["x"] * (n - 1), "b": ["y"]}}, "where"),
    ],
)
def test_as_many_as_the_limit_are_taken_and_no_more(kind, of, where):
    most = 2 if where == "rows" else 3
    decode(kind, of(most), 2, 3)
    with pytest.raises(RequestError, match=f"at most {most}, found {most + 1}") as caught:
        decode(kind, of(most + 1), 2, 3)
    assert caught.value.field == where


@pytest.fixture(scope="module")
def server(tmp_path_factory, ranker):
    folder = tmp_path_factory.mktemp("served")
    ranker.save(folder / "ranker")
    catalogue().write_parquet(folder / "items.parquet")
    with serving(folder, "ranker", "--items", "items.parquet") as running:
        yield running


def test_the_server_is_healthy_whatever_is_sent(server):
    """Six clients send all hostile bodies again and again, another asks `/healthz` meanwhile."""
    done, statuses, healthy = threading.Event(), set(), 0
    headers = {"Content-Type": "application/json"}

    def send(number):
        with httpx.Client(base_url=server.place, timeout=120) as client:
            bodies = [*LARGE_BODIES.values()]
            while not done.is_set():
                path, text = bodies[number % len(bodies)]
                statuses.add(client.post(path, content=text, headers=headers).status_code)
                number += 1

    with ThreadPoolExecutor(6) as pool, httpx.Client(base_url=server.place, timeout=120) as client:
        senders = [pool.submit(send, 3 * number) for number in range(6)]
        try:
            while healthy < 30 or (not statuses and not all(one.done() for one in senders)):
                assert client.get("/healthz").status_code == 200
                healthy += 1
                time.sleep(0.01)
        finally:
            done.set()
        assert client.post("/v1/recommend", json={"context": CONTEXT, "k": 3}).status_code == 200
    for one in senders:
        one.result()
    assert statuses == {422}
