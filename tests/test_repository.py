"""Workflows, issue forms, the image and the citation agree with the project; none of them is run here."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from doc_runner import parse

import fieldwise

yaml = pytest.importorskip("yaml", reason="PyYAML is absent: pip install 'fieldwise[docs]'")
ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted(
    set((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    - {ROOT / ".github/ISSUE_TEMPLATE/config.yml"}
)
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))


def read(path):
    return yaml.safe_load(path.read_text("utf-8"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.name)
def test_a_workflow_runs_what_exists_and_may_write_nothing(path):
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert set(workflow[True]) <= {"push", "pull_request", "workflow_dispatch"}, (
        "YAML reads the key `on` as true"
    )
    commands = [
        step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step
    ]
    assert {
        result for text in commands for result in re.findall(r"^make (\S+)", text, re.M)
    } <= TARGETS


def test_every_supported_python_and_every_wheel_is_tested():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    pythons = read(ROOT / ".github/workflows/ci.yml")["jobs"]["test"]["strategy"]["matrix"][
        "python"
    ]
    assert pythons == ["3.11", "3.12", "3.13", "3.14"]
    assert settings["project"]["requires-python"] == f">={pythons[0]}"
    assert (
        ROOT / settings["tool"]["cibuildwheel"]["test-command"].removeprefix("python {project}/")
    ).is_file()


@pytest.mark.parametrize("path", FORMS, ids=lambda p: p.name)
def test_an_issue_form_has_what_the_form_schema_asks_for(path):
    form = read(path)
    assert {"name", "description", "body"} <= set(form)
    for part in form["body"]:
        assert part["type"] in {"markdown", "textarea", "input", "dropdown", "checkboxes"}
        assert part["attributes"]["label"]
    assert len({part["id"] for part in form["body"]}) == len(form["body"])


def test_the_citation_names_this_version():
    citation = read(ROOT / "CITATION.cff")
    assert citation["version"] == fieldwise.__version__
    assert {"cff-version", "message", "title", "authors"} <= set(citation)


def lines(instruction):
    """The image's instructions of a kind, continued lines joined."""
    text = (ROOT / "deploy" / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
    return re.findall(rf"^{instruction} (.+)$", text, re.M)


def test_the_image_starts_the_server_without_root():
    words = [*json.loads(lines("ENTRYPOINT")[-1]), *json.loads(lines("CMD")[-1])]
    name, params = parse(words[1:])
    assert (words[0], name) == ("fieldwise", "serve")
    assert params["port"] == int(lines("EXPOSE")[0])
    assert lines("USER") == ["fieldwise"]
    assert "/healthz" in lines("HEALTHCHECK")[0]


def test_the_image_copies_what_the_build_context_has():
    ignored = (ROOT / "deploy" / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    kept = {line[1:] for line in ignored if line.startswith("!")}
    copied = {word for line in lines("COPY") if "--from" not in line for word in line.split()[:-1]}
    assert copied == kept
    assert all((ROOT / name).exists() for name in copied)
