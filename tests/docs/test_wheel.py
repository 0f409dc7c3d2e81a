"""The wheel contains everything that is needed, and uninstalls completely."""

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
    wanted = {
        str(file.relative_to(source))
        for file in (source / "corral").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
    assert wanted - names == set()
    assert any(name.endswith("/share/man/man1/corral.1") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "bench/"))]


def files_of(place: Path) -> set[Path]:
    return {file.relative_to(place) for file in place.rglob("*") if not file.is_dir()}


def test_wheel_is_installed_used_and_removed_completely(wheel: Path, tmp_path: Path) -> None:
    place = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    # Dependencies are already installed; only Corral itself is installed.
    (library,) = place.glob("lib/python*/site-packages")
    (library / "here.pth").write_text(sysconfig.get_path("purelib") + "\n")
    before = files_of(place)
    pip = [sys.executable, "-m", "pip", "--python", str(place), "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "install", "--quiet", "--no-deps", "--no-index", "--no-compile", wheel], check=True
    )
    env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    result = subprocess.run(
        [place / "bin/corral", "run", "--", "echo", "it works"],
        env=env,
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    assert result.stdout == "it works\n"
    where = [place / "bin/python", "-c", "import corral; print(corral.__file__)"]
    used = subprocess.run(where, env=env, check=True, capture_output=True, text=True).stdout
    assert used.startswith(str(library)), "the wheel was used, and not the source"
    assert (place / "share/man/man1/corral.1").exists()
    subprocess.run([*pip, "uninstall", "--quiet", "--yes", "corral"], check=True)
    assert files_of(place) == before
