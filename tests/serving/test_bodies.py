"""Bodies are bounded before they are looked into, told their first error, and large ones stop nobody else."""

import gc
import json
import threading
import time

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("fastapi", reason="FastAPI is absent: pip install 'fieldwise[serve]'")

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from serving.commands import serving
from serving.conftest import catalogue
from serving.hostile import LARGE_BODIES

from fieldwise.serving.bodies import BodyLimits, parsed
from fieldwise.serving.forms import ExplainRequest, PredictRequest, RecommendRequest
from fieldwise.serving.rows import RequestError, text_of

LIMITS = BodyLimits(rows=1000, ids=100_000)
CONTEXT = {"user": "u1", "history": ["i1"], "device": "tv"}
KINDS = {"/v1/predict": PredictRequest, "/v1/recommend": RecommendRequest, "/v1/explain": ExplainRequest}


def test_a_large_body_is_refused_soon(subtests):
    gc.collect()
    gc.freeze()  # as the server does at its start: what other tests left is not walked again
    for case, (path, text) in LARGE_BODIES.items():
        with subtests.test(case=case):
            assert len(text) <= 1 << 20
            began = time.process_time()
            if case == "keys of a row":  # of a form that is right: who reads the row refuses it
                parsed(text.encode(), KINDS[path], LIMITS)
            else:
                with pytest.raises((RequestError, RequestValidationError)):
                    parsed(text.encode(), KINDS[path], LIMITS)
            assert time.process_time() - began < 5


SCALARS = st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False) | st.text(max_size=3)
CELLS = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner))
ANY = {name: CELLS for kind in KINDS.values() for name in kind.model_fields}
ROWS = st.dictionaries(st.sampled_from(["a", "b"]), CELLS, max_size=2)
IDS = st.lists(SCALARS, max_size=3)
LIKELY = {"rows": st.lists(ROWS, max_size=3), "context": ROWS, "where": st.dictionaries(st.text(max_size=2), IDS)}
LIKELY |= {"candidates": IDS | st.none(), "exclude": IDS, "items": IDS, "k": st.integers(-1, 3), "pairs": st.booleans()}
FORMS = [st.fixed_dictionaries({}, optional=ANY), st.fixed_dictionaries({}, optional=LIKELY)]


@pytest.mark.parametrize("kind", KINDS.values())
@given(body=st.one_of(*FORMS, CELLS))
@settings(max_examples=80, deadline=None)
def test_what_the_published_form_takes_is_what_is_taken(kind, body):
    """Against Pydantic itself: the same bodies are refused, and the others are read as the same."""
    if isinstance(body, dict) and not kind.model_fields.keys() >= body.keys():
        body = {name: value for name, value in body.items() if name in kind.model_fields}
    try:
        expected = kind.model_validate(body)
    except ValidationError as e:
        expected = e
    try:
        found = parsed(json.dumps(body).encode(), kind, LIMITS)
    except (RequestError, RequestValidationError):
        if isinstance(expected, ValidationError):
            return
        with pytest.raises((TypeError, ValueError)):  # an id that is no text, told while the body is read
            texts(expected)
        return
    assert isinstance(expected, kind), body
    assert found == expected.model_copy(update=texts(expected))
    assert found.model_fields_set == expected.model_fields_set


def texts(body):
    """What `parsed` turns into texts."""
    lists = {name: getattr(body, name) for name in ("candidates", "exclude", "items") if getattr(body, name, None)}
    found = {name: [text_of(one) for one in ids] for name, ids in lists.items()}
    if getattr(body, "where", None):
        found["where"] = {column: [text_of(one) for one in values] for column, values in body.where.items()}
    return {name: value for name, value in found.items() if name in body.model_fields_set}


def test_the_first_error_is_told(subtests):
    for kind, body, said, field in [
        (RecommendRequest, {"candidates": ["a", {}]}, "candidates[1] must be text, a number, true or false", None),
        (RecommendRequest, {"where": {"g": 1}}, "where.g must be a list of values", "where.g"),
        (RecommendRequest, {"contxt": {}}, "contxt is not a field of this request: did you mean 'context'", "contxt"),
        (PredictRequest, {"rows": [{}, {"a": [[]]}]}, "rows[1].a must be text, a number, true, false, null", None),
        (PredictRequest, {"rows": [1]}, "rows[0] must be an object of columns and their values", "rows[0]"),
        (PredictRequest, [], "a body must be a JSON object", "body"),
        (ExplainRequest, {"rows": [{}] * 1001}, "rows must be at most 1,000, found 1,001", "rows"),
    ]:
        with subtests.test(kind=kind, body=body, said=said, field=field):
            with pytest.raises(RequestError) as caught:
                parsed(json.dumps(body).encode(), kind, LIMITS)
            assert said in str(caught.value)
            assert field is None or caught.value.field == field


def test_as_many_as_the_limit_are_taken_and_no_more(subtests):
    few = BodyLimits(rows=2, ids=3)
    for kind, of, where in [
        (PredictRequest, lambda n: {"rows": [{"a": 1}] * n}, "rows"),
        (PredictRequest, lambda n: {"rows": [{"a": ["x"] * n}]}, "rows[0].a"),
        (RecommendRequest, lambda n: {"context": {"a": ["x"] * n}}, "context.a"),
        (RecommendRequest, lambda n: {"candidates": ["x"] * n}, "candidates"),
        (RecommendRequest, lambda n: {"exclude": ["x"] * n}, "exclude"),
        (RecommendRequest, lambda n: {"where": {"a": ["x"] * (n - 1), "b": ["y"]}}, "where"),  # all filters together
    ]:
        most = few.rows if where == "rows" else few.ids
        with subtests.test(where=where, kind=kind):
            parsed(json.dumps(of(most)).encode(), kind, few)
            with pytest.raises(RequestError, match=f"at most {most}, found {most + 1}") as caught:
                parsed(json.dumps(of(most + 1)).encode(), kind, few)
            assert caught.value.field == where


@pytest.fixture(scope="module")
def server(tmp_path_factory, ranker):
    folder = tmp_path_factory.mktemp("served")
    ranker.save(folder / "ranker")
    catalogue().write_parquet(folder / "items.parquet")
    with serving(folder, "ranker", "--items", "items.parquet") as running:
        yield running


def test_the_server_is_healthy_whatever_is_sent(server):
    """Six clients send all hostile bodies again and again; `/healthz` is asked meanwhile, and a good client at last."""
    until, statuses, healthy = time.monotonic() + 3, set(), 0
    headers = {"Content-Type": "application/json"}

    def send(number):
        with httpx.Client(base_url=server.place, timeout=30) as client:
            bodies = [*LARGE_BODIES.values()]
            while time.monotonic() < until:
                path, text = bodies[number % len(bodies)]
                statuses.add(client.post(path, content=text, headers=headers).status_code)
                number += 1

    senders = [threading.Thread(target=send, args=(3 * number,)) for number in range(6)]
    for one in senders:
        one.start()
    with httpx.Client(base_url=server.place, timeout=30) as client:
        while time.monotonic() < until:
            assert client.get("/healthz").status_code == 200
            healthy += 1
            time.sleep(0.01)
        assert client.post("/v1/recommend", json={"context": CONTEXT, "k": 3}).status_code == 200
    for one in senders:
        one.join()
    assert statuses == {422}
    assert healthy > 2, "it does not wait for all bodies"
