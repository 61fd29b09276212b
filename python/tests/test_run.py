"""Training, evaluating and generating on tiny jobs, in this process and beside it."""
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

import meshwright


def steps_saved(run):
    return [one["step"] for one in meshwright.command("checkpoint", "ls", run)["checkpoints"]]


def test_two_trainings_after_one_another():
    heard, lines = [], []
    job = meshwright.Job("job.toml")
    first = job.train(heard.append, message=lambda line: lines.append(line) or job.plan(2))  # which may ask the job
    assert (first.steps_done, first.max_steps, str(first.folder), first.last) == (6, 6, "runs/first", heard[-1])
    assert [step.step for step in heard] == list(range(6)) and any(line.startswith("done: 6 steps") for line in lines)
    rows = [row for row in meshwright.metrics(first.folder) if isinstance(row, meshwright.StepRow)]
    for name in ("loss", "grad_norm", "lr"):
        assert [getattr(row, name) for row in rows] == [float(f"{getattr(step, name):.9g}") for step in heard]
    again = []
    second = meshwright.train("job.toml", again.append, overrides={"run.name": "second"})
    assert [step.loss for step in again] == [step.loss for step in heard] and str(second.folder) == "runs/second"
    assert meshwright.train("job.toml", again.append).last is None and len(again) == 6  # nothing is left of the first


def test_stop_save_and_go_on():
    with meshwright.Job("job.toml").open() as run:
        assert (run.rank, run.world_size, run.steps_done, run.max_steps) == (0, 1, 0, 6)
        assert run.train(lambda step: step.step == 1).step == 1 and run.steps_done == 2  # True
        run.train(lambda step: meshwright.SAVE, steps=1)
        assert run.train(lambda step: meshwright.STOP | meshwright.SAVE).step == 3
        run.save()
    assert steps_saved("runs/first") == [3, 4]
    assert meshwright.train("job.toml").steps_done == 6


def test_what_a_callback_raises_is_raised_and_nothing_hangs():
    mine, heard = ValueError("mine"), []

    def after(step):
        heard.append(step.step)
        if step.step == 2:
            raise mine

    job = meshwright.Job("job.toml")
    with pytest.raises(ValueError) as caught:
        job.train(after)
    assert caught.value is mine and heard == [0, 1, 2]
    with pytest.raises(TypeError, match="integer"):
        job.train(lambda step: step.loss)

    def refuses(line):
        raise mine

    with pytest.raises(ValueError) as caught:
        job.train(message=refuses)  # while it is opened
    assert caught.value is mine
    with job.open() as run:
        with pytest.raises(ValueError):
            run.train(after)
        assert run.steps_done == 3 and run.train().step == 5  # it can go on


@pytest.mark.parametrize("where", ["in the callback", "while the engine computes", "without a callback"])
def test_ctrl_c_ends_after_the_step_and_saves(where):
    before, begun, heard = signal.getsignal(signal.SIGINT), threading.Event(), []

    def interrupt():
        begun.wait()
        os.kill(os.getpid(), signal.SIGINT)

    def after(step):
        heard.append(step.step)
        if where == "in the callback":
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)
        begun.set()

    thread = threading.Thread(target=interrupt if where == "while the engine computes" else lambda: None)
    thread.start()
    # More steps than are computed before the signal, and no checkpoint but the one that the signal asks for.
    with meshwright.Job("job.toml", {"step_scheduler.max_steps": 100000, "checkpoint.every_steps": 0}).open() as run:
        with pytest.raises(KeyboardInterrupt):
            if where == "without a callback":
                signal.signal(signal.SIGALRM, before)
                signal.setitimer(signal.ITIMER_REAL, 0.2)
                run.train()
            else:
                run.train(after)
        thread.join()
        assert 0 < run.steps_done < 100000 and signal.getsignal(signal.SIGINT) is before
        assert not heard or run.steps_done - heard[-1] in (1, 2)  # it is not called for the step during which the signal came
        steps = run.steps_done
        assert steps_saved("runs/first") == [steps]
        assert run.train(steps=1).step == steps  # nothing is left behind
    signal.signal(signal.SIGALRM, signal.SIG_DFL)


def test_a_callback_cannot_call_its_run():
    said = []

    def after(step):
        for call in (run.save, run.train, run.close, lambda: meshwright.generate("runs/first", "a")):
            with pytest.raises((meshwright.Error, RuntimeError)) as caught:
                call()
            said.append(str(caught.value))
        return meshwright.STOP

    with meshwright.Job("job.toml").open() as run:
        run.train(after)
        run.train(steps=1)
        assert run.steps_done == 2
    assert [text.partition("error[E0101]: ")[2] for text in said] == ["a callback of a run cannot call functions of the run"] * 2 + [
        "", "another run, or meshwright_generate(), is under way in this process"]
    assert said[2] == "a callback cannot close its run: return meshwright.STOP"


def test_threads():
    job, found, go_on = meshwright.Job("job.toml"), [], threading.Event()
    thread = threading.Thread(target=lambda: found.append(job.train(lambda step: go_on.wait() and None)))
    thread.start()
    rows = meshwright.metrics("runs/first", follow=thread.is_alive, poll_seconds=0.01)
    assert next(rows).step == 0
    with pytest.raises(meshwright.Error, match="another run") as caught:
        meshwright.train("job.toml", overrides={"run.name": "second"})
    assert caught.value.code == "E0101"
    assert meshwright.plan("job.toml", 2)["world_size"] == 2
    go_on.set()
    assert [type(row).__name__ for row in rows] == ["StepRow"] * 5 + ["ValidationRow"]
    thread.join()
    assert found[0].steps_done == 6
    with job.open() as run:
        refused = []
        other = threading.Thread(target=lambda: refused.append(pytest.raises(meshwright.Error, run.save).value))
        other.start()
        other.join()
        assert "belongs to the thread that opened it" in str(refused[0])
    with pytest.raises(meshwright.Error, match="run is NULL"):
        run.save()


def test_evaluate_and_generate_are_the_programs():
    more = dict(max_new=9, temperature=0.9, top_k=50, top_p=0.9, seed=2**63 - 1)
    with meshwright.Job("job.toml").open() as run:
        run.train()
        loss, ours = run.evaluate(), run.generate("Once ", **more)
    [found] = meshwright.evaluate("runs/first", samples=8)
    assert (found.step, found.samples, found.seq_len, found.targets) == (6, 8, 32, 256) and found.loss == pytest.approx(loss, abs=1e-5)
    [validation] = [row for row in meshwright.metrics("runs/first") if isinstance(row, meshwright.ValidationRow)]
    assert validation.validation_loss == pytest.approx(loss, abs=1e-5)
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in more.items()]
    theirs = meshwright.command("generate", "runs/first", "--prompt", "Once ", *flags)
    heard = []
    words = meshwright.generate("runs/first", "Once ", **more, on_token=lambda token, text: heard.append(token))
    assert ours.tokens == words.tokens == theirs["new_ids"] == [token for token in heard if token >= 0]
    assert theirs["text"] == "Once " + words.text and len(words.tokens) == 9
    of_ids = dict(tokens=list(b"Once "), **more)
    end = words.tokens[4]
    assert meshwright.generate("runs/first", **of_ids, stop=[]) == words
    assert meshwright.generate("runs/first", **of_ids, stop=[end]).tokens == words.tokens[:words.tokens.index(end) + 1]


def test_what_generate_and_evaluate_refuse(folder):
    (folder / "unvalidated.toml").write_text((folder / "job.toml").read_text().partition("[validation_dataset]")[0])
    meshwright.train("unvalidated.toml", overrides={"step_scheduler.max_steps": 1})

    def refused(call, *arguments, **more):
        with pytest.raises(meshwright.Error) as caught:
            call(*arguments, **more)
        return caught.value

    assert refused(meshwright.generate, "runs/first", "a", stop=[999]).code == "E0702"
    assert refused(meshwright.generate, "runs/none", "a").status != 0
    error = refused(meshwright.evaluate, "runs/first")
    assert (error.code, error.status) == ("E0101", 2) and "help: --data" in str(error)
    with pytest.raises(ZeroDivisionError):
        meshwright.generate("runs/first", "a", max_new=3, on_token=lambda token, text: 1 / 0)
    with pytest.raises(OverflowError):
        meshwright.generate("runs/first", "a", seed=-1)
    assert len(meshwright.generate("runs/first", "a", max_new=3, stop=[]).tokens) == 3
    with meshwright.Job("unvalidated.toml").open() as run:
        assert refused(run.evaluate).code == "E0206"
        assert run.train().step == 5  # which left it as it was


RANK = """
import meshwright, os, sys
rank = int(os.environ["RANK"])
def after(step):
    if step.step == 2 and rank == 1:
        raise ValueError("mine")
with meshwright.Job("job.toml").open() as run:
    run.train(after)
    assert rank == 0 and run.steps_done == 3 and run.world_size == 2
    try: run.save()
    except meshwright.Error as error: sys.exit(error.status)
"""


def test_an_exception_on_one_rank_of_two_leaves_none_waiting():
    port = str(10000 + os.getpid() % 20000)  # below the kernel's own range
    ranks = [subprocess.Popen([sys.executable, "-c", RANK], stderr=subprocess.PIPE, text=True, env={
        **os.environ, "RANK": str(r), "LOCAL_RANK": str(r), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}) for r in range(2)]
    try:
        said = [rank.communicate(timeout=200)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [6, 1], said
    assert "ValueError: mine" in said[1]
