"""What other programs read of a run: check_monitors.py [--build build]

A run with every output of [report] is asked by HTTP while it trains, killed, and continued from its checkpoint. Then the `tensorboard` package reads its
event files, which must be metrics.jsonl at float32 without the steps that were cut back; `prometheus_client` parses what the address answered and the file
for node_exporter; Python's csv reads metrics.csv.
"""
import argparse, csv, json, math, os, re, signal, struct, subprocess, sys, tempfile, time, urllib.request

os.environ["OMP_NUM_THREADS"] = "1"

from prometheus_client.parser import text_string_to_metric_families
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.compat.proto.event_pb2 import SessionLog

from job_text import job_text

root = os.path.realpath(os.path.join(os.path.dirname(__file__), "../.."))
TAGS = {"loss": "train/loss", "grad_norm": "train/grad_norm", "lr": "train/lr", "tokens": "train/tokens", "step_ms": "speed/step_ms",
        "tokens_per_second": "speed/tokens_per_second", "memory_bytes": "memory/memory_bytes", "data_ms": "speed/data_ms", "validation_loss": "validation/loss"}


def same(name, good, what=""):
    print(f"{name}{'' if good else '   DIFFERS ' + str(what)}", flush=True)
    if not good:
        sys.exit(1)


def float32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def lines(path):
    """Whole rows of a file that may be growing."""
    if not os.path.exists(path):
        return []
    with open(path) as f:
        return [json.loads(line) for line in f if line.endswith("\n")]


def wait_for(what, seconds=60):
    end = time.monotonic() + seconds
    while not (found := what()):
        if time.monotonic() > end:
            same("the run gets there in time", False)
        time.sleep(0.02)
    return found


def metrics_of(text):
    """Samples by name, after what the parser forgives: every line is a comment of ours or a sample, every family is described once."""
    list(text_string_to_metric_families(text))  # all of it is understood, prometheus-cpp's own metrics too
    text = "".join(line for line in text.splitlines(True) if not re.match(r"(# \w+ )?exposer_", line))
    names = re.findall(r"^# TYPE (\S+) (?:counter|gauge)$", text, re.M)
    for line in text.splitlines():
        if not re.fullmatch(r"# (HELP|TYPE) meshwright_[a-z0-9_]+ .+|meshwright_[a-z0-9_]+\{[a-z]+=\"[^\"]*\"(,[a-z]+=\"[^\"]*\")*\} \S+", line):
            same("a line of the text format", False, line)
    same("every family has one type and one help", len(set(names)) == len(names) and sorted(names) == sorted(re.findall(r"^# HELP (\S+)", text, re.M)), names)
    out = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if not family.documentation.endswith("."):
                same(f"{sample.name} is described", False, family)
            if (family.type == "counter") != sample.name.endswith("_total"):
                same(f"{sample.name} has the ending of its type", False, family.type)
            out[sample.name] = (sample.value, sample.labels)
    return out


def check_events(folder, rows, cut):
    files = sorted(os.listdir(folder))
    same("two event files", len(files) == 2 and all(re.fullmatch(r"events\.out\.tfevents\.\d+\..+\.meshwright", name) for name in files), files)
    for name, start in zip(files, (0, cut + 1)):
        events = list(EventFileLoader(os.path.join(folder, name)).Load())
        same(f"begins with its version and step {start}", events[0].file_version == "brain.Event:2" and events[1].session_log.status == SessionLog.START and
             events[1].step == start, events[:2])
    read = EventAccumulator(folder, size_guidance={"scalars": 0, "tensors": 0})
    read.Reload()
    same("the configuration is a text", read.SummaryMetadata("configuration").plugin_data.plugin_name == "text" and
         b'name = "job"' in read.Tensors("configuration")[0].tensor_proto.string_val[0])
    named = {key: TAGS.get(key) for row in rows for key in row}
    fields = [key for key in named if key not in ("step", "completed_steps")]
    for key in fields:
        wanted = [(row["completed_steps"], float32(row[key])) for row in rows if row.get(key) is not None]
        tag = named[key] or next((tag for tag in read.Tags()["scalars"] if tag.split("/")[1] == key), None)
        if not wanted and tag is None:
            continue  # n/a in every step
        found = [(event.step, event.value) for event in read.Scalars(tag) if not math.isnan(event.value)] if tag else []
        same(f"{tag}: {len(found)} steps", found == wanted, [pair for pair in zip(found, wanted) if pair[0] != pair[1]][:3])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default=os.path.join(root, "build"))
    a = p.parse_args()
    began = time.monotonic()
    program = os.path.join(os.path.realpath(a.build), "bin/meshwright")
    os.chdir(root)
    with tempfile.TemporaryDirectory() as folder:
        run, file = f"{folder}/runs/job", f"{folder}/job.toml"
        metrics = f"{run}/metrics.jsonl"
        with open(file, "w") as f:
            f.write(job_text(folder, "job", 'config = "configs/models/llama-tiny.json"', 'strategy = "ddp"', 2, 2, 1_000_000, 'kind = "mock"\nseq_len = 16',
                             "every_steps = 40") +
                    '[validation_dataset]\nkind = "mock"\nseq_len = 16\nevery_steps = 30\nnum_batches = 1\n'
                    f'[report]\ntensorboard = true\ncsv = true\nprometheus = "127.0.0.1:0"\nprometheus_file = "{folder}/collected"\n')
        command = [program, "train", file]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as training:
            try:
                wait_for(lambda: len(lines(metrics)) > 100 and os.path.exists(f"{run}/checkpoints/latest"))
                address = re.search(r"metrics for Prometheus at (http://127\.0\.0\.1:\d+/metrics)", open(f"{run}/run.log").read())
                same("run.log says where it listens", address)
                before = lines(metrics)[-1]["completed_steps"]
                answer = urllib.request.urlopen(address[1], timeout=10).read().decode()
                after = lines(metrics)[-1]["completed_steps"]
                scraped = metrics_of(answer)
                steps, labels = scraped["meshwright_completed_steps"]
                same("a live scrape has the newest step", before - 1 <= steps <= after + 1, (before, steps, after))
                same("and whose it is", labels == {"run": "job", "strategy": "ddp"}, labels)
                same("and that it trains", (scraped["meshwright_run_training"][0], scraped["meshwright_run_finished"][0]) == (1, 0))
                wait_for(lambda: lines(metrics)[-1]["completed_steps"] % 40 > 5)
            finally:
                training.send_signal(signal.SIGKILL)
        lost = lines(metrics)[-1]["completed_steps"]
        cut = int(os.path.basename(os.path.realpath(f"{run}/checkpoints/latest")).removeprefix("step_"))
        same(f"steps {cut + 1} to {lost} are lost", cut < lost, (cut, lost))
        done = subprocess.run([*command, "--set", f"step_scheduler.max_steps={cut + 3}"], capture_output=True, text=True)
        same("the run goes on", done.returncode == 0, done.stderr)
        rows = lines(metrics)
        check_events(f"{run}/tensorboard", rows, cut)

        written = metrics_of(open(f"{folder}/collected/meshwright_job.prom").read())
        last = [row for row in rows if "loss" in row][-1]
        same("the file for node_exporter has the last step",
             written["meshwright_training_loss"][0] == last["loss"] and written["meshwright_step_seconds"][0] == last["step_ms"] / 1000 and
             written["meshwright_completed_steps"][0] == cut + 3, written)
        same("and the end", (written["meshwright_run_training"][0], written["meshwright_run_finished"][0]) == (0, 1))
        for name in ("training_loss", "validation_loss", "step_seconds", "tokens_total", "memory_peak_bytes", "checkpoint_steps", "last_step_timestamp_seconds"):
            same(f"meshwright_{name} is in both", all(f"meshwright_{name}" in found for found in (scraped, written)))

        with open(f"{run}/metrics.csv", newline="") as f:
            table = list(csv.DictReader(f))
        losses = {row["step"]: row["validation_loss"] for row in rows if "validation_loss" in row}
        wanted = [{**row, "validation_loss": losses.get(row["step"])} for row in rows if "loss" in row]
        same(f"metrics.csv: {len(table)} steps", [{key: None if cell == "" else float(cell) for key, cell in line.items() if " " not in cell} for line in table] ==
             [{key: value for key, value in row.items() if not isinstance(value, list)} for row in wanted])
        printed = subprocess.run([program, "report", run, "--csv"], capture_output=True).stdout
        same("report --csv prints the same", printed == open(f"{run}/metrics.csv", "rb").read())
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
