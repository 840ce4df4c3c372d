"""What is installed: pins for every dependency, and package data in the wheel."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from fieldwise.ops.native import NATIVE

ROOT = Path(__file__).resolve().parents[1]


def _name(requirement: str) -> str:
    result = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert result is not None
    return re.sub(r"[-_.]+", "-", result.group()).lower()


def _pins() -> list[str]:
    lines = (ROOT / "scripts" / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if not line.startswith("#")]


def test_every_dependency_has_an_exact_pin() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [
        *project["dependencies"],
        *(r for extra in project["optional-dependencies"].values() for r in extra),
    ]
    pinned = {_name(line) for line in _pins()}
    assert [
        line for line in _pins() if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9A-Za-z.]*", line)
    ] == []
    assert {_name(r) for r in wanted} - {"fieldwise"} <= pinned


def _set_up(folder: Path, *, cpu_build_at: str, gpu: bool = False) -> tuple[list[str], str]:
    """What `setup-venv demo` asks pip for, and what it says; pip finds PyTorch's CPU build at `cpu_build_at`."""
    tree, tools = folder / "tree", folder / "tools"
    for name in (
        "pyproject.toml",
        "scripts/constraints.txt",
        "native/CMakeLists.txt",
        "scripts/setup-venv",
    ):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
    (tree / "native" / "one.cpp").touch()
    tools.mkdir()
    for name in ("sh", "cat", "chmod", "cksum", "cp", "dirname", "mkdir", "mv", "rm", "sed"):
        result = shutil.which(name)
        assert result is not None
        (tools / name).symlink_to(result)
    python = f"""#!/bin/sh
case "$*" in
    "-m venv .venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
    *"print("*) echo "$0" ;;
    "-c "*) ;;
    *) echo "$*" >>asked; case "$*" in *+cpu*) case "$*" in {cpu_build_at}) ;; *) exit 1 ;; esac ;; esac ;;
esac
"""
    for name, script in {
        "python3": python,
        "uname": "#!/bin/sh\necho Linux\n",
        "nvidia-smi": "#!/bin/sh\n",
    }.items():
        if name != "nvidia-smi" or gpu:
            (tools / name).write_text(script)
            (tools / name).chmod(0o755)
    done = subprocess.run(
        ["sh", str(tree / "scripts" / "setup-venv"), "demo"],
        env={"PATH": str(tools)},
        capture_output=True,
        text=True,
        check=True,
    )
    asked = [line for line in (tree / "asked").read_text().splitlines() if "torch==" in line]
    return [line.partition("--no-deps ")[2] or line.split()[-1] for line in asked], done.stderr


def test_setup_takes_pytorch_for_cpus_where_there_is_no_gpu(tmp_path: Path) -> None:
    (pin,) = (line for line in _pins() if line.startswith("torch=="))
    patient = f"--retries 1 --timeout 20 {pin}+cpu"
    elsewhere = (
        f"--retries 1 --timeout 20 --index-url=https://download.pytorch.org/whl/cpu {pin}+cpu"
    )
    for name, where, gpu, expected in [
        ("a GPU", "*", True, [pin]),
        ("the machine's own index", "*", False, [patient]),
        ("PyTorch's index", "*pytorch.org*", False, [patient, elsewhere]),
        ("none", "never", False, [patient, elsewhere, pin]),
    ]:
        (tmp_path / name).mkdir()
        asked, said = _set_up(tmp_path / name, cpu_build_at=where, gpu=gpu)
        assert asked == expected, name
        assert ("GB of CUDA libraries" in said) == (name == "none")


def _wheel(folder: Path, **environment: str) -> Path:
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-qq",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(folder),
    ]
    source = folder / "a copy with spaces"  # the build folder of the checkout stays as it is
    shutil.copytree(ROOT, source, ignore=_left_out)
    subprocess.run(
        [*build, str(source)], check=True, capture_output=True, env={**os.environ, **environment}
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


def _left_out(folder: str, names: list[str]) -> set[str]:
    """What a checkout holds besides its sources, which stands at its top: `src/fieldwise/runs` is a source."""
    return (
        {"shared", ".venv", "build", ".git", "runs", "demo"} & set(names)
        if Path(folder) == ROOT
        else set()
    )


DATA = {".py", ".toml", ".typed", ".html", ".css", ".js", ".svg"}


def _sources() -> set[str]:
    source = ROOT / "src"
    return {p.relative_to(source).as_posix() for p in source.rglob("*") if p.suffix in DATA}


@pytest.mark.slow
@pytest.mark.skipif(not NATIVE.ready, reason=NATIVE.why)
def test_a_wheel_built_with_a_compiler_holds_the_native_library_for_every_python(
    tmp_path: Path,
) -> None:
    wheel = _wheel(tmp_path)
    assert re.search(r"-py3-none-(?!any).*\.whl$", wheel.name)
    assert _sources() | {"fieldwise/_native.so"} <= set(zipfile.ZipFile(wheel).namelist())


@pytest.mark.slow
def test_without_a_working_compiler_the_wheel_is_pure_and_runs(tmp_path: Path) -> None:
    wheel = _wheel(tmp_path, CC="/bin/false", CXX="/bin/false")
    assert wheel.name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert _sources() <= set(names)
    assert "fieldwise/_native.so" not in names
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    program = (
        f"import sys; sys.meta_path = [f for f in sys.meta_path if 'Redirecting' not in type(f).__name__]; "
        f"sys.path.insert(0, {str(tmp_path / 'installed')!r}); "
        "import fieldwise.ops.native as n; from fieldwise import AFM, Layout; print(n.NATIVE.ready, n.__file__); "
        "AFM().build(Layout.of_sizes([3, 4]))"
    )
    clean = {**os.environ, "FIELDWISE_NATIVE": ""}  # no library from elsewhere
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=clean
    )
    assert done.stdout.startswith("False")
    assert str(tmp_path) in done.stdout


@pytest.mark.skipif(not NATIVE.ready, reason=NATIVE.why)
def test_the_native_library_links_no_openmp_and_no_python() -> None:
    """A second OpenMP beside PyTorch's would fight for the cores; a Python would tie the wheel to one version."""
    spec = importlib.util.find_spec("fieldwise._native")
    if spec is None or spec.origin is None or shutil.which("ldd") is None:
        pytest.skip("the library's file or ldd is not at hand")
    needs = subprocess.run(["ldd", spec.origin], capture_output=True, text=True, check=True).stdout
    assert not re.search(r"omp|python|torch", needs)
