"""Valid and invalid requests generated from the OpenAPI document: no server error, no answer outside the document."""

import pytest

pytest.importorskip("schemathesis", reason="schemathesis is absent: pip install schemathesis")

import polars as pl
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from serving.asgi import patient_app

from fieldwise.serving.service import Service
from fieldwise.serving.stores import Lookup, Stores, TableStore

CHECKS = [
    not_a_server_error,
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
]
USERS = pl.DataFrame({"user": ["u1", "u2"], "history": ["i1|i2", None], "device": ["tv", "phone"]})
OPERATIONS = [
    ("POST", "/v1/predict"), ("POST", "/v1/recommend"), ("POST", "/v1/explain"), ("GET", "/v1/effects"),
    ("GET", "/v1/items/{id}/similar"), ("GET", "/v1/items"), ("GET", "/v1/users"), ("GET", "/v1/users/{id}"),
    ("GET", "/v1/about"), ("POST", "/v1/why-not"),
]  # fmt: skip
# so nothing could be wrong; benchmarks.chaos reads it, too
NOTHING_TAKEN = ("/v1/about", "/v1/effects")


@pytest.fixture(scope="module")
def document(ranker, cascade):
    stores = Stores(users=Lookup("users", TableStore("user", USERS)))
    return schemathesis.openapi.from_asgi(
        "/openapi.json", patient_app(Service(ranker, cascade), stores)
    )


@pytest.mark.parametrize(
    ("method", "path", "mode"),
    [
        (method, path, mode)
        for method, path in OPERATIONS
        for mode in GenerationMode
        if path not in NOTHING_TAKEN or mode != GenerationMode.NEGATIVE
    ],
)
@given(data=st.data())
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
def test_answers_are_within_the_document(document, method, path, mode, data):
    """No server error; status, type of content and body are among those that the operation documents."""
    case = data.draw(document[path][method].as_strategy(generation_mode=mode))
    answer = case.call()
    assert answer.status_code < 500
    assert (
        str(answer.status_code) in document.raw_schema["paths"][path][method.lower()]["responses"]
    )
    case.validate_response(answer, checks=CHECKS)  # raises what deviates


def test_every_operation_of_the_document_is_tested(document):
    """Those above are all that the document has."""
    assert {
        (result.ok().method.upper(), result.ok().path) for result in document.get_all_operations()
    } == {*OPERATIONS}
