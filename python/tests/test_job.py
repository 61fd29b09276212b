"""Planning and checking, errors, and where the native part is looked for."""
import ast
import importlib.util
import inspect
import os
import pickle
import shutil
import subprocess
import sys
import threading

import pytest

import meshwright
from conftest import ROOT


def refused(function, *arguments, **more):
    with pytest.raises(meshwright.Error) as caught:
        function(*arguments, **more)
    return caught.value


def test_a_wrong_key_has_code_key_and_help():
    error = refused(meshwright.Job, "job.toml", {"optimizer.lrr": 1e-3})
    assert (error.code, error.key, error.help, error.status) == ("E0202", "optimizer.lrr", ["did you mean optimizer.lr?"], 2)
    assert str(error).startswith("error[E0202]: unknown key optimizer.lrr") and "= help: did you mean optimizer.lr?" in str(error)


def test_all_mistakes_come_at_once_and_say_where(folder):
    text = (folder / "job.toml").read_text().replace("max_steps = 6", "max_steps = -6").replace("seq_len", "seq_lenn", 1)
    (folder / "job.toml").write_text(text)
    error = refused(meshwright.validate, "job.toml")
    assert [e.key for e in error.errors] == ["step_scheduler.max_steps", "dataset.seq_lenn"]
    assert text.splitlines()[error.errors[0].line - 1] == "max_steps = -6" and error.errors[0].file == "job.toml"
    again = pickle.loads(pickle.dumps(error))
    assert (again.errors, str(again), again.code, again.help) == (error.errors, str(error), error.code, error.help)


def test_plan_is_the_programs():
    ours = meshwright.plan("job.toml", 4, 3, overrides={"distributed.tp_size": 2, "step_scheduler.local_batch_size": 1})
    theirs = meshwright.command("plan", "job.toml", "--world-size", "4", "--rank", "3", "--set", "distributed.tp_size=2", "--set",
                                "step_scheduler.local_batch_size=1")
    assert ours == theirs and ours["rank"]["coordinates"]["tp"] == 1
    assert set(theirs) <= set(meshwright.Plan.__annotations__), "a key of plan --json that Plan does not have"
    error = refused(meshwright.plan, "job.toml", 3, overrides={"distributed.tp_size": 2})
    assert (error.code, error.status) == ("E0301", 3) and error.help


def test_validate_tells_what_train_refuses():
    assert meshwright.validate("job.toml", 2) == []
    assert meshwright.validate("job.toml", overrides={"lr_scheduler.lr_warmup_steps": 20})[0].startswith("warning: lr_scheduler.lr_warmup_steps = 20")
    assert refused(meshwright.validate, "job.toml", 3).status == 3
    assert refused(meshwright.validate, "none.toml").code == "E0209"


def test_values_of_keys(folder):
    job = meshwright.Job(folder / "job.toml", {"run.name": "ünï", "lora.target_modules": ["q_proj", "v_proj"], "run.stop_on_nonfinite": False,
                                               "run.skip_step_above_z": None})
    assert job.get("run.skip_step_above_z") == '"none"'
    assert (job.get("run.name"), job.get("lora.target_modules"), job.get("run.stop_on_nonfinite")) == ('"ünï"', '["q_proj", "v_proj"]', "false")
    assert refused(job.set, "optimizer.lr", -1).key == "optimizer.lr"
    job.set("optimizer.lr", 0.5)
    assert job.get("optimizer.lr") == "0.5"
    assert refused(job.get, "optimizer.lrr").code == "E0202"
    assert meshwright.Job.parse('schema = 1\n[distributed]\nstrategy = "fsdp2"', {"distributed.tp_size": 2}).plan(4)["dp"] == 2
    with pytest.raises(ValueError, match="NUL"):
        job.set("run.name", "a\0b")
    with pytest.raises(OverflowError):
        job.plan(2**70)


def test_wrong_types_are_named():
    def refused(call, *arguments, **more):
        with pytest.raises(TypeError) as caught:
            call(*arguments, **more)
        return str(caught.value)

    assert refused(meshwright.plan, 3) == "a text or a path is wanted, not 3"
    assert refused(meshwright.plan, "job.toml", overrides=["optimizer.lr=1"]).endswith("not ['optimizer.lr=1']")
    assert refused(meshwright.train, "job.toml", {"optimizer.lr": 1}) == "after_step is a function of a Step, not {'optimizer.lr': 1}"
    assert not os.path.exists("runs")


def test_threads_share_a_job():
    job, found = meshwright.Job("job.toml", {"step_scheduler.global_batch_size": 32}), []

    def look(world_size):
        for _ in range(5):
            found.append((world_size, job.plan(world_size)["world_size"], job.get("run.name")))

    threads = [threading.Thread(target=look, args=(n,)) for n in (1, 2, 4, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 20 and all(asked == got and name == '"first"' for asked, got, name in found)


def test_command_gives_errors_of_the_program():
    error = refused(meshwright.command, "checkpoint", "ls", "nowhere")
    assert error.code.startswith("E0") and error.status == 7 or error.status == 2
    error = refused(meshwright.command, "train", "job.toml")  # which has no --json
    assert error.code == "E0101" and "train has no flag --json" in str(error)


LIBRARY = "libmeshwright_c.so.1"


def test_where_the_native_part_is_found(folder, monkeypatch):
    package = folder / "tree/share/meshwright/python/meshwright"
    trees = [folder / "mine", folder / "path", package / "_native", folder / "tree"]
    for tree in trees:
        (tree / "lib").mkdir(parents=True)
        (tree / "bin").mkdir()
        (tree / "lib" / LIBRARY).touch()
        (tree / "bin/meshwright").touch(mode=0o755)
    mine, path, native, tree = trees
    shutil.copy(ROOT / "python/meshwright/_library.py", package)
    spec = importlib.util.spec_from_file_location("library_elsewhere", package / "_library.py")
    elsewhere = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(elsewhere)

    def missing():
        with pytest.raises(ImportError) as caught:
            elsewhere.prefix()
        return str(caught.value)

    monkeypatch.setenv("PATH", f"{path}/bin")
    monkeypatch.setenv("MESHWRIGHT_PREFIX", str(mine))
    assert elsewhere.prefix() == mine
    monkeypatch.delenv("MESHWRIGHT_PREFIX")
    assert elsewhere.prefix() == native
    shutil.rmtree(native)
    assert elsewhere.prefix() == tree
    (tree / "lib" / LIBRARY).unlink()
    assert elsewhere.prefix() == path
    assert elsewhere.program() == f"{path}/bin/meshwright"
    (path / "lib" / LIBRARY).unlink()
    if not os.path.exists(f"/usr/lib/{LIBRARY}"):
        assert missing().startswith(f"no lib/{LIBRARY} in {native} or {tree} or {path} or /usr: install Meshwright")
    monkeypatch.setenv("MESHWRIGHT_PREFIX", str(path))
    assert missing().startswith(f"MESHWRIGHT_PREFIX is {path}, but there is no lib/{LIBRARY}")


def test_torch_of_another_site_packages(folder):
    """A wheel's native part looks for LibTorch beside the package alone."""
    ours, theirs = folder / "ours", folder / "theirs"
    shutil.copytree(ROOT / "python/meshwright", ours / "meshwright", ignore=shutil.ignore_patterns("_native"))
    (ours / "meshwright/_native/bin").mkdir(parents=True)
    (ours / "meshwright/_native/lib").mkdir()
    (ours / "meshwright/_native/lib" / LIBRARY).touch()
    (ours / "meshwright/_native/bin/meshwright").write_text('#!/bin/sh\necho "\\"$LD_LIBRARY_PATH\\""\n')
    (ours / "meshwright/_native/bin/meshwright").chmod(0o755)
    (theirs / "torch/lib").mkdir(parents=True)
    (theirs / "torch/__init__.py").write_text("raise RuntimeError")
    (theirs / "nvidia/nccl/lib").mkdir(parents=True)
    [some] = {line.split()[-1] for line in open("/proc/self/maps") if "/libc.so" in line}
    shutil.copy(os.path.join(os.path.dirname(some), "libm.so.6"), theirs / "torch/lib/libtorch.so")
    code = ("import meshwright, os; from meshwright import _library; print(meshwright.command('x'));"
            "_library.load_libtorch(); print('/torch/lib/libtorch.so' in open('/proc/self/maps').read())")
    environment = {**os.environ, "PYTHONPATH": f"{ours}:{theirs}", "LD_LIBRARY_PATH": "/before"}
    del environment["MESHWRIGHT_PREFIX"]

    def run():
        return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True).stdout.split()

    assert run() == [f"{theirs}/torch/lib:{theirs}/nvidia/nccl/lib:/before", "True"]
    (ours / "torch").mkdir()
    assert run() == ["/before", "False"]


@pytest.mark.parametrize("library, words", [("text", "cannot load"), ("libm.so.6", "has no meshwright_version: it is of a release that is too old")])
def test_a_library_that_is_none_or_too_old(folder, monkeypatch, library, words):
    from meshwright import _library
    (folder / "lib").mkdir()
    (folder / "lib" / LIBRARY).write_text("text")
    if library != "text":
        monkeypatch.setattr(_library.ctypes, "CDLL", lambda path, of=_library.ctypes.CDLL: of(library))
    monkeypatch.setenv("MESHWRIGHT_PREFIX", str(folder))
    _library.library.cache_clear()
    try:
        with pytest.raises(meshwright.LibraryError, match=words) as caught:
            meshwright.version()
        assert "\n" not in str(caught.value) and str(folder) in str(caught.value)
        with pytest.raises(meshwright.LibraryError, match="bin/meshwright is missing"):
            meshwright.program()
    finally:
        _library.library.cache_clear()


@pytest.mark.parametrize("machine, libc, words", [("aarch64", "glibc 2.36", "is for x86_64 processors, and this machine is aarch64"),
                                                  ("x86_64", "glibc 2.31", "needs glibc 2.34 or newer, and this system has glibc 2.31")])
def test_a_machine_that_a_wheel_does_not_fit(folder, monkeypatch, machine, libc, words):
    """It is told before the loader says so in its own words."""
    from meshwright import _library
    for name, text in ((f"meshwright/_native/lib/{LIBRARY}", "text"), ("meshwright-1.dist-info/WHEEL", "Tag: py3-none-manylinux_2_34_x86_64")):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(text)
    monkeypatch.setattr(_library, "_PACKAGE", folder / "meshwright")
    monkeypatch.setattr(_library, "_OF_WHEEL", folder / "meshwright/_native")
    monkeypatch.setattr(_library.platform, "machine", lambda: machine)
    monkeypatch.setattr(_library.os, "confstr", lambda name: libc)
    monkeypatch.delenv("MESHWRIGHT_PREFIX")
    _library.library.cache_clear()
    try:
        for call in (meshwright.version, meshwright.program):
            with pytest.raises(meshwright.LibraryError, match=words):
                call()
    finally:
        _library.library.cache_clear()


def test_imports_nothing_but_the_standard_library():
    code = "import sys; before = set(sys.modules); import meshwright; print(*sys.stdlib_module_names, '|', *set(sys.modules) - before)"
    if sys.version_info < (3, 10):  # which has no list of its own modules
        code = code.replace("*sys.stdlib_module_names, ", "")
    known, new = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split("|")
    modules = {name.partition(".")[0] for name in new.split()} - {"meshwright"}
    assert "ctypes" in modules and not modules & {"torch", "numpy"}
    assert not known or not modules - set(known.split())


def test_what_is_public_is_described_and_old_pythons_can_read_it():
    for name in meshwright.__all__:
        thing = getattr(meshwright, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert inspect.getdoc(thing), name
        for method, function in vars(thing).items() if inspect.isclass(thing) else ():
            assert method.startswith("_") or not inspect.isfunction(function) or inspect.getdoc(function), f"{name}.{method}"
    for file in (ROOT / "python/meshwright").glob("*.py"):
        ast.parse(file.read_text(), feature_version=(3, 9))
    assert (ROOT / "python/meshwright/py.typed").exists()


def test_types_are_strict():
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--no-error-summary", f"--cache-dir={os.devnull}", ROOT / "python/meshwright"],
                          capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
