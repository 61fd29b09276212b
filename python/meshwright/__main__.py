"""The command `meshwright`, and `python -m meshwright`: executes the native program in this process' place, so that no Python is left."""
import os
import shutil
import sys
from pathlib import Path

from ._library import libtorch_elsewhere, program, why_not


def main() -> None:
    why = why_not()
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
    elif not Path(script).exists():  # of a package that PYTHONPATH names
        script = program()
    os.execv(program(), [script, *sys.argv[1:]])


if __name__ == "__main__":
    main()
