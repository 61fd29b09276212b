"""The command `meshwright`, and `python -m meshwright`: executes the native program in this process' place, so that no Python is left."""
import os
import sys

from ._library import libtorch_elsewhere, program, why_not


def main() -> None:
    why = why_not()
    if why:
        sys.exit(f"error: {why}")
    folders = libtorch_elsewhere()
    if folders:
        before = os.environ.get("LD_LIBRARY_PATH")
        os.environ["LD_LIBRARY_PATH"] = ":".join(folders + ([before] if before else []))
    os.execv(program(), [program(), *sys.argv[1:]])


if __name__ == "__main__":
    main()
