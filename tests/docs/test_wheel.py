"""The wheel: its content, installation, use and removal."""

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

TOP = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    subprocess.run([*build, "--directory", str(folder)], cwd=TOP, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def test_wheel_contains_everything(wheel: Path) -> None:
    source = TOP / "src"
    expected = {
        str(file.relative_to(source))
        for file in (source / "corral").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert expected - names == set()
    assert any(name.endswith("/share/man/man1/corral.1") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "bench/"))]


def list_files(folder: Path) -> set[Path]:
    return {file.relative_to(folder) for file in folder.rglob("*") if not file.is_dir()}


def test_wheel_is_installed_used_and_removed_completely(wheel: Path, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    # Dependencies are already installed; only Corral itself is installed.
    (library,) = venv.glob("lib/python*/site-packages")
    (library / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    before = list_files(venv)
    pip = [sys.executable, "-m", "pip", "--python", str(venv), "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "install", "--quiet", "--no-deps", "--no-index", "--no-compile", wheel], check=True
    )
    env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    result = subprocess.run(
        [venv / "bin/corral", "run", "--", "echo", "it works"],
        env=env,
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    assert result.stdout == "it works\n"
    print_location = [venv / "bin/python", "-c", "import corral; print(corral.__file__)"]
    location = subprocess.run(
        print_location, env=env, check=True, capture_output=True, text=True
    ).stdout
    assert location.startswith(str(library)), "the installed wheel is imported, not the source tree"
    assert (venv / "share/man/man1/corral.1").exists()
    subprocess.run([*pip, "uninstall", "--quiet", "--yes", "corral"], check=True)
    assert list_files(venv) == before
