"""The page as text: escaped, without anything that could ask for something, the same bytes each time."""

import base64
import hashlib
import re
import sys

from markupsafe import Markup

from fieldwise.cli import run
from fieldwise.display import Table, number
from fieldwise.evaluation.interval import Interval
from fieldwise.report.page import Chapter, Code, Figure, Section, measured, render

BAD = "<script>alert('1')</script>"
HALF = Interval(value=0.5, low=0.4, high=0.6)


def page(word=BAD):
    table = Table(columns=[word, "n"], rows=[[word, measured(HALF)]], title=word, note=word)
    folded = Table(columns=[word], rows=[[word]], title=word, folded=True)
    figure = Figure(title=word, drawing=Markup("<svg></svg>"), table=table, note=word)
    blocks = [f"{word} `{word}`", table, folded, figure, figure, Code(word, word)]
    chapter = Chapter(
        title=word, about=word, facts=[(word, word, word)], sections=[Section(word, blocks)]
    )
    return render(word, [chapter, chapter])


def test_every_value_is_escaped():
    text = page()
    assert "<script" not in text
    assert text.count("&lt;script&gt;") > 30
    assert (
        f"<code>{BAD.replace('<', '&lt;').replace('>', '&gt;').replace(chr(39), '&#39;')}</code>"
        in text
    )


def test_the_page_can_request_nothing():
    text = page("word")
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', text)
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.S)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in policy.replace("&#39;", "'")
    assert policy.startswith("default-src &#39;none&#39;")
    assert "<script" not in text
    assert " style=" not in text
    assert not re.findall(r"https?://|url\(|@import", text)
    links = re.findall(r'(?:href|src)="([^"]*)"', text)
    assert {link[0] for link in links if link != "data:,"} == {"#"}
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert {link[1:] for link in links if link.startswith("#")} <= set(ids)


def test_the_same_chapters_give_the_same_bytes():
    assert page() == page()


def test_numbers():
    assert [number(v) for v in (0.5, -0.00004, 99.9, 1234.5, 1e6)] == [
        "0.5000",
        "0.0000",
        "99.9000",
        "1234.50",
        "1000000",
    ]
    assert [number(v, "+") for v in (0.5, -0.5, -0.00001)] == ["+0.5000", "-0.5000", "+0.0000"]
    assert measured(HALF) == "0.5000<small>0.4000 to 0.6000</small>"


def test_without_jinja_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    monkeypatch.delitem(sys.modules, "fieldwise.report")
    assert run(["report", "x"]) == 2
    assert (
        capsys.readouterr().err
        == "fieldwise: a report needs Jinja: pip install 'fieldwise[report]'\n"
    )
