"""The command `meshwright`, and `python -m meshwright`: executes the native program in this process' place, so that no Python is left."""
import os
import platform
import re
import shutil
import sys
from pathlib import Path

from ._library import libtorch_elsewhere, program

_HERE = Path(__file__).resolve().parent


def _why_not() -> str:
    """What of this machine the program cannot run on; else empty. pip has asked, but not of a machine that finds the installation in a shared folder."""
    wheels = [(info / "WHEEL").read_text() for info in _HERE.parent.glob("meshwright-*.dist-info")]
    tag = re.search(r"manylinux_(\d+)_(\d+)_(\w+)", "".join(wheels))
    if tag is None:
        return ""
    if platform.machine() != tag[3]:
        return f"this build is for {tag[3]} processors, and this machine is {platform.machine()}: build from source here (docs/install.md)"
    needs = f"this build needs glibc {tag[1]}.{tag[2]} or newer, and this system has"
    try:
        name, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
    except ValueError:  # musl does not know the question
        return f"{needs} another C library: use Debian, Ubuntu, RHEL or an image of them"
    if tuple(map(int, version.split(".")[:2])) < (int(tag[1]), int(tag[2])):
        return f"{needs} {name} {version}: use Debian 12, Ubuntu 22.04, RHEL 9 or newer, or an image of them"
    return ""


def main() -> None:
    why = _why_not()
    if why:
        sys.exit(f"error: {why}")
    folders = libtorch_elsewhere()
    if folders:
        before = os.environ.get("LD_LIBRARY_PATH")
        os.environ["LD_LIBRARY_PATH"] = ":".join(folders + ([before] if before else []))
    # Commands that the program proposes begin with what it was called by: this script where PATH leads to it.
    script = sys.argv[0] if not sys.argv[0].endswith(".py") else str(Path(sys.executable).with_name("meshwright"))
    on_path = shutil.which("meshwright")
    if on_path is not None and Path(on_path).resolve() == Path(script).resolve():
        script = "meshwright"
    os.execv(program(), [script, *sys.argv[1:]])


if __name__ == "__main__":
    main()
