"""Large and deep bodies that are meant to hurt a server, and a row that is not."""

MIB = (1 << 20) - 100


def many(text, size=MIB):
    """A JSON list of the same element, so long that it fills a body."""
    return "[" + ",".join([text] * (size // (len(text) + 1))) + "]"


LARGE_BODIES = {
    "candidates": ("/v1/recommend", f'{{"candidates": {many("{}")}}}'),
    "exclude": ("/v1/recommend", f'{{"exclude": {many("[]")}}}'),
    "exclude in bounds": ("/v1/recommend", f'{{"exclude": {many("{}", 290_000)}}}'),
    "where": ("/v1/recommend", f'{{"where": {{"genres": {many("{}")}}}}}'),
    "many filters": (
        "/v1/recommend",
        '{"where": {' + ",".join(f'"{n}": {{}}' for n in range(70_000)) + "}}",
    ),
    "a cell": ("/v1/predict", f'{{"rows": [{{"user": {many("{}")}}}]}}'),
    "a cell of numbers": ("/v1/predict", f'{{"rows": [{{"user": {many("1")}}}]}}'),
    "rows": ("/v1/predict", f'{{"rows": {many("{}")}}}'),
    "rows of texts": ("/v1/explain", f'{{"rows": {many("1")}}}'),
    "items": ("/v1/explain", f'{{"items": {many("null")}}}'),
    "a context": ("/v1/recommend", f'{{"context": {{"user": {many("[1]")}}}}}'),
    "keys": ("/v1/recommend", "{" + ",".join(f'"{n}":1' for n in range(90_000)) + "}"),
    "keys of a row": (
        "/v1/predict",
        '{"rows": [{' + ",".join(f'"devic{n}":1' for n in range(70_000)) + "}]}",
    ),
    "a long key": ("/v1/recommend", f'{{"{"context" * 140_000}": 1}}'),
    "deep": ("/v1/predict", '{"rows":' + "[" * 1_000_000),
    "deep objects": ("/v1/explain", '{"rows":' + '{"a":' * 200_000),
    "deep and whole": ("/v1/recommend", '{"k":' + "[" * 900 + "]" * 900 + "}"),
    "deep and small": ("/v1/recommend", '{"context": {"user":' + "[" * 5000 + "]" * 5000 + "}}"),
    "a scalar": ("/v1/recommend", f'{{"k": {many("{}")}}}'),
    "no JSON": ("/v1/predict", "x" * 1_000_000),
}

ROW = {"user": "u", "history": [], "device": "tv", "item": "i1", "genres": ["g1"], "price": 1.0}
