"""The runner of pages' blocks fails where it must; that it runs them is seen by the pages of docs/."""

import textwrap

import pytest
from doc_runner import PageRunner, blocks, command_lines
from typer.exceptions import TyperException

from fieldwise import FieldwiseError


@pytest.fixture
def page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def written(text):
        (tmp_path / "page.md").write_text(textwrap.dedent(text), "utf-8")
        return blocks(tmp_path / "page.md")

    return written


def run_all(found):
    runner = PageRunner(slow=False)
    for block in found:
        runner.run(block)


PRINTS = "```sh\nhead -n 1 page.md\n```\n\n<!-- output -->\n```"


def test_a_page_that_does_not(subtests, page):
    for text, message in [
        ("```sh\napt-get install make\n```", "no test runs 'apt-get'"),
        ("```sh\npip install torch\n```", "of pip only"),
        ("```sh\npip install 'fieldwise[tea]'\n```", "no such extra: tea"),
        ("<!-- not run: lazy -->\n```sh\napt-get install make\n```", "not of a known kind"),
        ("```sh\nfieldwise describe simulated/none\n```", "simulated/none"),
        ("```sh\nmake tea\n```", "no target tea"),
        ("```nginx\nlisten 443;\n```", "needs a mark"),
        (f"{PRINTS}text\nanother heading\n```", "no such line was printed"),
        (f"{PRINTS}text\nloss 1 valid 2 test 3\n```", "were not printed"),
        (f'{PRINTS}json\n{{"recipe": "x"}}\n```', "Expecting"),
        ("```python\n>>> 1 + 1\n3\n\n```", "Expected"),
        ('```python\nraise SystemExit("wrong")\n```', "wrong"),
        ("```toml\n[training]\nepoch = 1\n```", "epochs"),
        ("```toml\nfield = 1\n```", "field"),
        ("<!-- not run: pattern -->\n```sh\nfieldwise train mine.toml --epochs 3\n```", "--epochs"),
    ]:
        with (
            subtests.test(text=text, message=message),
            pytest.raises(
                (AssertionError, FieldwiseError, ValueError, SystemExit, TyperException),
                match=message,
            ),
        ):
            run_all(page(text))


def test_a_quotation_goes_on_over_lines(page):
    assert [
        block.line for block in page("a\n\n```sh\nls\n```\n\n<!-- output -->\n```text\nb\n```")
    ] == [3, 8]
    (block,) = page(
        "```sh\n# it's\ncurl -d '{\n  \"# k\": 1\n}' redis://x#users  # one\nmake test\n```"
    )
    assert command_lines(block) == [
        ["curl", "-d", '{\n  "# k": 1\n}', "redis://x#users"],
        ["make", "test"],
    ]
