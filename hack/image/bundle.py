"""Make a folder that holds a whole Shoal: an interpreter, its standard library, and Shoal with what it needs.

    python hack/image/bundle.py FOLDER

The folder works at /shoal and needs of the image around it nothing but glibc: an init container copies it into a
user's Pod, where there may be no Python at all, or another one. Programs and libraries find each other by paths
relative to themselves (patchelf), never by the environment, which is the user's.

Both the Dockerfile and the test cluster's images are made with it.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACE = "/shoal"
UNUSED = (
    "test", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "site-packages", "pydoc_data", "__pycache__",
    "config-*",
)  # fmt: skip
OF_GLIBC = ("ld-linux", "libc.so", "libm.so", "libdl.so", "libpthread.so", "librt.so", "libutil.so", "libresolv.so")
"""What every image with glibc has; a second copy from elsewhere would not fit the first."""
NOT_NEEDED = (
    "_tkinter",
    "nis",
    "ossaudiodev",
    "_gdbm",
    "_dbm",
    "readline",
    "_curses",
    "_test",
    "xxlimited",
    "_xxtestfuzz",
)


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: bundle.py FOLDER")
    folder = Path(sys.argv[1]).resolve()
    if folder.exists() and any(folder.iterdir()):
        sys.exit(f"{folder} is not empty")
    bundle(folder)


def bundle(folder: Path) -> None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = folder / "lib" / version
    _copy_interpreter(folder, library, version)
    _install(library / "site-packages")
    _bring_libraries(folder, library)
    _note_commit(library / "site-packages" / "shoal")
    _write_command(folder / "bin" / "shoal", version)
    compiled(folder, version)


def _copy_interpreter(folder: Path, library: Path, version: str) -> None:
    (folder / "bin").mkdir(parents=True)
    shutil.copytree(sysconfig.get_path("stdlib"), library, ignore=shutil.ignore_patterns(*UNUSED))
    for each in (library / "lib-dynload").iterdir():
        if each.name.startswith(NOT_NEEDED):
            each.unlink()
    program = Path(sys.executable).resolve()
    shutil.copy2(program, folder / "bin" / version)
    (folder / "bin" / version).chmod(0o755)


def _install(target: Path) -> None:
    """Shoal itself as users get it: built from the tree, with the versions of the constraints file."""
    # Copies: what follows changes the libraries in place, and a hard link would change those of uv's cache with them.
    what = ["--quiet", "--target", target, "--constraint", ROOT / "constraints.txt", f"{ROOT}[kubernetes,optimizer]"]
    by_uv = [sys.executable, "-m", "uv", "pip", "install", "--link-mode", "copy", *what]
    if subprocess.run(by_uv, check=False).returncode:  # uv does not read pip's settings; pip is slower but gets there
        shutil.rmtree(target, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "pip", "install", "--disable-pip-version-check", *what], check=True)
    shutil.rmtree(target / "bin", ignore_errors=True)


def _note_commit(package: Path) -> None:
    """Of which commit it is, for `shoal_build_info`: as the build was told, or as the tree's git says."""
    asked = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    told = os.environ.get("COMMIT")
    try:
        commit = told or subprocess.run(asked, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return
    (package / "COMMIT").write_text(commit.strip() + "\n", encoding="ascii")


def _bring_libraries(folder: Path, library: Path) -> None:
    """Copy every shared library that is not glibc's, and let everything find them from where it stands."""
    ours = [p for p in (folder / "bin").iterdir() if p.is_file()] + sorted((library / "lib-dynload").glob("*.so"))
    packages = sorted((library / "site-packages").rglob("*.so"))
    brought: dict[str, Path] = {}
    for each in (*ours, *packages):
        for found in _needs(each):
            if not found.is_relative_to(folder) and found.name not in brought:
                brought[found.name] = found
    for name, found in brought.items():
        shutil.copy2(found, folder / "lib" / name)
        (folder / "lib" / name).chmod(0o755)
        _patch("--set-rpath", "$ORIGIN", folder / "lib" / name)
    for each in ours:
        _patch("--set-rpath", _way(each, folder / "lib"), each)
    for each in packages:  # they may have brought libraries of their own, which go first
        _patch("--add-rpath", _way(each, folder / "lib"), each)


def _needs(program: Path) -> list[Path]:
    said = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    found = [Path(line.split("=>")[1].split()[0]) for line in said.splitlines() if "=> /" in line]
    return [path for path in found if not path.name.startswith(OF_GLIBC)]


def _way(program: Path, library: Path) -> str:
    return f"$ORIGIN/{os.path.relpath(library, program.parent)}"


def _patch(option: str, where: str, program: Path) -> None:
    subprocess.run([Path(sys.executable).with_name("patchelf"), option, where, program], check=True)


def _write_command(path: Path, version: str) -> None:
    # -I: the user's PYTHONPATH and PYTHONHOME are for the user's Python.
    path.write_text(f"#!{PLACE}/bin/{version} -I\nimport sys\n\nfrom shoal.cli import main\n\nsys.exit(main())\n")
    path.chmod(0o755)


def compiled(folder: Path, version: str) -> None:
    """With the paths that it will have; unchecked, as nobody writes there later."""
    words = ["-m", "compileall", "-q", "-j", "2", "--invalidation-mode", "unchecked-hash"]
    place = f"{PLACE}/lib/{version}"
    subprocess.run([sys.executable, *words, "-s", folder / "lib" / version, "-p", place, folder / "lib"], check=False)


if __name__ == "__main__":
    main()
