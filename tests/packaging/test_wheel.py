"""The built wheel and source archive hold the whole package and nothing beside it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
SHIPPED = (".py", ".lark", ".typed", ".json", ".safetensors", "NOTICE")

IMPORT_ALL = """
import importlib, importlib.util, os, pkgutil, smcprog
assert os.path.abspath(smcprog.__file__).startswith(os.environ["TARGET"]), smcprog.__file__
for module in pkgutil.walk_packages(smcprog.__path__, "smcprog."):
    if module.name != "smcprog.genlm" or importlib.util.find_spec("genlm"):
        importlib.import_module(module.name)
        print(module.name)
for name in ("potentials", "grammars", "tests", "examples"):
    spec = importlib.util.find_spec(name)  # other packages may have such a folder
    assert spec is None or not str(spec.origin).startswith(os.environ["TARGET"]), name
    assert not os.path.exists(os.path.join(os.environ["TARGET"], name)), name
"""


def package_files() -> set[str]:
    """Every file of the package in the repository, links followed, as a wheel names it."""
    files = set()
    for folder, _, names in os.walk(REPO / "smcprog", followlinks=True):
        for name in names:
            if name.endswith(SHIPPED):
                files.add(Path(folder, name).relative_to(REPO).as_posix())
    return files


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Source archive, and the wheel built from it (not from the repository)."""
    copy = tmp_path_factory.mktemp("source") / "repo"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPO / name, copy)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("smcprog", "potentials", "grammars", "tests", "examples", "docs"):
        shutil.copytree(REPO / name, copy / name, symlinks=True, ignore=ignored)
    out = tmp_path_factory.mktemp("dist")
    run = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(copy)],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


def test_wheel_holds_every_module_and_grammar(archives: tuple[Path, Path]) -> None:
    files = package_files()
    assert {"smcprog/potentials/base.py", "smcprog/py.typed"} <= files
    assert any(name.startswith("smcprog/grammars/") and name.endswith(".lark") for name in files)
    with zipfile.ZipFile(archives[1]) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == files


def test_wheel_metadata(archives: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(archives[1]) as wheel:
        folder = next(n for n in wheel.namelist() if n.endswith("METADATA")).split("/")[0]
        metadata = Parser().parsestr(wheel.read(f"{folder}/METADATA").decode())
        entry_points = wheel.read(f"{folder}/entry_points.txt").decode()
        assert f"{folder}/licenses/LICENSE" in wheel.namelist()
    import smcprog

    assert metadata["Version"] == smcprog.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.10"
    assert {"test", "docs", "genlm"} <= set(metadata.get_all("Provides-Extra", []))
    assert "smcprog = smcprog.cli:main" in entry_points


def test_source_archive_holds_real_folders(archives: tuple[Path, Path]) -> None:
    with tarfile.open(archives[0]) as sdist:
        members = sdist.getmembers()
    assert not [m.name for m in members if m.issym() or m.islnk()]
    names = {m.name.partition("/")[2] for m in members}
    assert package_files() <= names
    assert {"LICENSE", "README.md", "pyproject.toml"} <= names
    assert not {n for n in names if n.startswith(("potentials/", "grammars/"))}


def test_installed_wheel_imports_and_leaks_no_name(
    archives: tuple[Path, Path], tmp_path: Path
) -> None:
    target, elsewhere = tmp_path / "target", tmp_path / "elsewhere"
    elsewhere.mkdir()
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(target), str(archives[1])], check=True)
    run = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL],
        cwd=elsewhere,
        env={**os.environ, "PYTHONPATH": str(target), "TARGET": str(target)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    modules = {
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in package_files()
        if name.endswith(".py")
    }
    if importlib.util.find_spec("genlm") is None:  # the extra of that name
        modules = {name for name in modules if not name.startswith("smcprog.genlm")}
    assert set(run.stdout.split()) == modules - {"smcprog"}


def test_installed_package_leaks_no_top_level_name(tmp_path: Path) -> None:
    """Whatever way this environment has it installed, editable above all."""
    probe = (
        "import importlib.util as u; print(*(u.find_spec(n) is not None "
        "for n in ('smcprog', 'potentials', 'grammars')))"
    )
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    run = subprocess.run(
        [sys.executable, "-c", probe], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    installed, *leaked = run.stdout.split()
    if installed == "False":
        pytest.skip("smcprog is not installed in this environment")
    assert leaked == ["False", "False"]


@pytest.mark.parametrize("name", ["potentials", "grammars"])
def test_links_are_relative(name: str) -> None:
    link = REPO / "smcprog" / name
    assert link.is_symlink()
    assert os.readlink(link) == f"../{name}"
