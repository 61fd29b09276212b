"""The package as a user has it: MESHWRIGHT_PREFIX names the native part, and python/ is on PYTHONPATH."""
import os
import re
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before LibTorch is loaded
ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/python.md").read_text()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The current folder, with the job of docs/python.md."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    [job] = re.findall(r"^```toml\n(.*?)^```", PAGE, re.M | re.S)
    (tmp_path / "job.toml").write_text(job)
    return tmp_path
