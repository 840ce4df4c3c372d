"""Output that the encoding lacks, and output that nobody reads."""

import io
import os
import subprocess
import sys

import pytest

from fieldwise.cli import main
from fieldwise.cli.show import print_table, say
from fieldwise.cli.streams import forgiving, forgiving_streams


@pytest.fixture
def piped(monkeypatch):
    """Standard output and error as pipes of an encoding; returns what was read from each after some work."""

    def call(work, encoding):
        descriptors = {}
        for name in ("stdout", "stderr"):
            descriptors[name], end = os.pipe()
            monkeypatch.setattr(sys, name, io.TextIOWrapper(io.FileIO(end, "w"), encoding=encoding))
        work()
        results = []
        for name, descriptor in descriptors.items():
            getattr(sys, name).close()
            with open(descriptor, encoding=encoding) as file:
                results.append(file.read())
        return results

    return call


def exit_code(*arguments):
    with pytest.raises(SystemExit) as e:
        main([str(argument) for argument in arguments])
    return e.value.code


def test_what_an_encoding_lacks_is_escaped_in_every_kind_of_output(subtests, piped):
    def work():
        with forgiving_streams():
            print("клиент ü")
            print_table(["к", "é"], [["товар", "1"]])
            say("ошибка")
            print("warning 漢", file=sys.stderr)

    for encoding, error in [("ascii", "\\u043e"), ("cp1252", "\\u043e"), ("utf-8", "ошибка")]:
        with subtests.test(encoding=encoding):
            out, err = piped(work, encoding)
            shown = "клиент ü".encode(encoding, "backslashreplace").decode(encoding)
            assert out.splitlines()[0] == shown
            assert "товар".encode(encoding, "backslashreplace").decode(encoding) in out
            assert error in err
            assert len(err.splitlines()) == 2


def test_a_command_on_names_that_the_encoding_lacks(bundle, piped, tmp_path):
    folder = tmp_path / "бандл"
    folder.symlink_to(bundle)
    codes = []

    def work():
        codes.append(exit_code("evaluate", folder, "--data", bundle.parent / "log.csv"))
        codes.append(exit_code("evaluate", "нет"))

    out, err = piped(work, "ascii")
    assert codes == [0, 2]
    assert "logloss" in out
    assert "\\u043d\\u0435\\u0442" in err, "the error's name"


@pytest.mark.parametrize("unbuffered", [False, True])
def test_a_reader_that_has_gone_changes_no_code(monkeypatch, unbuffered):
    for name in ("stdout", "stderr"):
        reader, end = os.pipe()
        os.close(reader)
        raw = io.FileIO(end, "w")
        binary = raw if unbuffered else io.BufferedWriter(raw)
        monkeypatch.setattr(
            sys, name, io.TextIOWrapper(binary, encoding="utf-8", write_through=unbuffered)
        )
    assert exit_code("describe") == 0
    assert exit_code("--help") == 0
    assert exit_code("describe", "no-such-recipe") == 2
    for name in ("stdout", "stderr"):
        getattr(sys, name).close()


def test_streams_that_were_closed_at_the_start(monkeypatch):
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    assert exit_code("describe") == 0
    assert exit_code("describe", "no-such-recipe") == 2


def test_a_full_disk_behind_the_output_is_an_error(monkeypatch):
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    text = io.StringIO()
    monkeypatch.setattr(sys, "stderr", text)
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert exit_code("describe") == 2
    assert "\nfieldwise: the disk is full" in text.getvalue()


def test_other_streams_stay():
    stream = io.StringIO()
    assert forgiving(stream) is stream


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="other systems have names in Unicode"
)
def test_a_file_name_that_the_system_cannot_encode_is_a_sentence(tmp_path):
    plain_c = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    (tmp_path / "r.toml").write_text('[data]\npath = "товары.csv"\n', "utf-8")
    command = [sys.executable, "-m", "fieldwise", "describe", "r.toml"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | plain_c,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert "PYTHONUTF8=1" in done.stderr
