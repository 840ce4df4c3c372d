"""The runner of pages' blocks fails where it must."""

import textwrap

import pytest
from doc_blocks import blocks
from doc_runner import PageRunner, command_lines
from typer.exceptions import TyperException

from fieldwise.errors import FieldwiseError


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


def test_a_page_that_does_what_it_says(page, tmp_path):
    result = page(
        """
        <!-- not run: system -->
        ```sh
        apt-get install make
        ```

        ```sh
        pip install 'fieldwise[serve]'
        ```

        ```sh
        fieldwise simulate --out log.csv   # a comment
        head -n 1 \\
          log.csv > head.txt
        ```

        ```python
        # first.py
        from pathlib import Path
        print("columns:", len(Path("head.txt").read_text().split(",")))
        ```

        <!-- output -->
        ```text
        columns: 3
        ```

        ```toml
        # fm.toml: a recipe
        extends = "simulated/fm"
        ```

        ```sh
        fieldwise describe fm.toml --json > fm.json
        ```

        ```python
        >>> import json; from pathlib import Path
        >>> json.loads(Path("fm.json").read_text())["recipe"]
        'fm.toml'

        ```
        """
    )
    assert [block.line for block in result] == [3, 7, 11, 17, 24, 28, 33, 37]
    run_all(result)
    assert (tmp_path / "first.py").exists()


def test_a_page_that_does_not(subtests, page):
    for text, message in [
        ("```sh\napt-get install make\n```", "no test runs 'apt-get'"),
        ("```sh\npip install torch\n```", "of pip only"),
        ("```sh\npip install 'fieldwise[tea]'\n```", "no such extra: tea"),
        ("<!-- not run: lazy -->\n```sh\napt-get install make\n```", "not of a known kind"),
        ("```sh\nfieldwise describe simulated/none\n```", "simulated/none"),
        ("```sh\nmake tea\n```", "no target tea"),
        ("```nginx\nlisten 443;\n```", "needs a mark"),
        ("```sh\nhead -n 1 page.md\n```\n\n<!-- output -->\n```text\nanother heading\n```", "no such line was printed"),
        ("```sh\nhead -n 1 page.md\n```\n\n<!-- output -->\n```text\nloss 1 valid 2 test 3\n```", "were not printed"),
        ("```python\n>>> 1 + 1\n3\n\n```", "Expected"),
        ('```python\nraise SystemExit("wrong")\n```', "wrong"),
        ("```toml\n[training]\nepoch = 1\n```", "epochs"),
        ("```toml\nfield = 1\n```", "field"),
        ("```json\n{]\n```", "Expecting"),
        ("<!-- not run: pattern -->\n```sh\nfieldwise train mine.toml --epochs 3\n```", "--epochs"),
        (
            '```sh\nfieldwise describe simulated/fm --json\n```\n\n<!-- output -->\n```json\n{"recipe": "x"}\n```',
            "line 6",
        ),
    ]:
        with (
            subtests.test(text=text, message=message),
            pytest.raises((AssertionError, FieldwiseError, ValueError, SystemExit, TyperException), match=message),
        ):
            run_all(page(text))


def test_a_quotation_goes_on_over_lines(page):
    (block,) = page("```sh\n# it's\ncurl -d '{\n  \"# k\": 1\n}' redis://x#users  # one\nmake test\n```")
    assert command_lines(block) == [["curl", "-d", '{\n  "# k": 1\n}', "redis://x#users"], ["make", "test"]]
