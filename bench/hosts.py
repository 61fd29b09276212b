#!/usr/bin/env python3
"""Training over two hosts whose link is slow, beside PyTorch's own strategies, in turns in one run.

    bench/hosts.py [--build build] [--deps .deps] [--rates 100mbit 1gbit] [--each 1 2] [--strategies fsdp2 ddp hsdp zero1] [--rounds 2] [--steps 8] [--no-one-host] [--flow 250mbit] [--set KEY=VALUE ...]

Hosts are namespaces of network, names and shared memory on this machine, joined by a cable (veth) on whose ends `tc` keeps what goes out to a
rate (tbf). They need root and end with this program. Ranks have one thread; 5.9 M parameters in float32 (tests/reference_pytorch/make_fixture.py), sequences
of 128, local batch 2. PyTorch runs tests/reference_pytorch/peer_train.py with the lean model: FSDP2, DDP (also beside zero1), and HSDP with copies on
the hosts and shards inside them. Figures are of all steps but the first three:
  ratio    PyTorch's median step over ours, in one round
  MB out   what leaves a host in a step by the counters of its interface, without the 66 bytes of headers that each packet and acknowledgement
           has there; of the host that sends more
  least    what must leave each of two hosts in a step: half of every gather and of every sum to shards, which is one whole set of parameters
           for ddp, hsdp and zero1, and for fsdp2 (which gathers all layers but the last twice) about one and a half
  busy     of the direction with more bytes: bytes with the headers of every packet on the wire, as tbf counts them, over what the rate allows
           between the first and the last byte of a step, whole samples of 5 ms; the middle one of the steps
  of link  least time on the wire, over the step
With --flow no connection sends more than that (a library in front of libc paces sockets), as clouds limit one: `--flow 250mbit --set dist_env.connections_per_peer=4`,
beside the same without the key.
Steps are told apart by what rank 0 writes at their ends. "plain" is one connection that sends all it can: what these figures can reach.
The last lines: ddp over two ranks of this machine beside two ranks that train by themselves at once, each with the same batch.
"""
import argparse, contextlib, os, re, shutil, signal, statistics, subprocess, sys, tempfile, threading, time

import jobs

HEADERS = 66  # Ethernet, IPv4 and TCP with time stamps
SAMPLE = 0.005
ADDRESSES = ("10.71.0.1", "10.71.0.2")
LIMIT = 300  # seconds of a run
BOUND = ["setpriv", "--pdeathsig", "KILL"]  # ends with this program, however that ends


# In front of libc: every connection over a network is paced; what a listening socket accepts has its rate.
PACED = """#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/socket.h>
int socket(int domain, int type, int protocol) {
  int (*made)(int, int, int) = (int (*)(int, int, int))dlsym(RTLD_NEXT, "socket");
  int out = made(domain, type, protocol);
  unsigned rate = RATE;
  if (out >= 0 && domain != AF_UNIX && (type & 15) == SOCK_STREAM) setsockopt(out, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate);
  return out;
}
"""


def bytes_a_second(rate):
    return {"gbit": 1e9, "mbit": 1e6}[rate[-4:]] * float(rate[:-4]) / 8


def paced(folder, rate):
    """Variables of the environment under which no connection sends more."""
    library = f"{folder}/paced.so"
    subprocess.run(["cc", "-shared", "-fPIC", f"-DRATE={int(bytes_a_second(rate))}", "-x", "c", "-", "-o", library], input=PACED, text=True, check=True)
    return {"LD_PRELOAD": library}


class Link:
    """Two hosts and the cable between them."""

    def __init__(self, rate):
        self.bytes_a_second = bytes_a_second(rate)
        self.keepers = []
        try:
            for _ in ADDRESSES:
                self.keepers.append(subprocess.Popen([*BOUND, "unshare", "-n", "-m", "-u", "--propagation", "private", "sleep", "7200"]))
            for host, keeper in enumerate(self.keepers):
                await_namespace(keeper.pid)
                self.on(host, "hostname", f"host{host}")
                self.on(host, "mount", "-t", "tmpfs", "tmpfs", "/dev/shm")
                self.on(host, "ip", "link", "set", "lo", "up")
            subprocess.run(["ip", "link", "add", "net0", "netns", str(self.keepers[0].pid), "type", "veth", "peer", "name", "net0", "netns", str(self.keepers[1].pid)], check=True)
            for host, address in enumerate(ADDRESSES):
                self.on(host, "ip", "addr", "add", f"{address}/24", "dev", "net0")
                self.on(host, "ip", "link", "set", "net0", "up")
                # Room for one of the largest packets; a queue of 50 ms, which TCP does not fill.
                self.on(host, "tc", "qdisc", "add", "dev", "net0", "root", "tbf", "rate", rate, "burst", "128kb", "latency", "50ms")
        except BaseException:
            self.close()
            raise

    def inside(self, host):
        return [*BOUND, "nsenter", "-t", str(self.keepers[host].pid), "-n", "-m", "-u", "--"]

    def on(self, host, *command):
        return subprocess.run([*self.inside(host), *command], check=True, capture_output=True, text=True).stdout

    def counters(self, host):
        """(bytes, packets) that the interface sent: of packets as the kernel has them, up to 64 KiB."""
        with open(f"/proc/{self.keepers[host].pid}/net/dev") as f:
            words = re.search(r"net0:(.*)", f.read()).group(1).split()
        return int(words[8]), int(words[9])

    def on_wire(self, host):
        """Bytes that tbf let go, each packet of the wire with its headers."""
        return int(re.search(r"Sent (\d+) bytes", self.on(host, "tc", "-s", "qdisc", "show", "dev", "net0")).group(1))

    def close(self):
        for keeper in self.keepers:
            keeper.kill()  # the namespaces, and the cable in them, go with their last process
            keeper.wait()
        self.keepers = []


def await_namespace(pid):
    mine = os.readlink("/proc/self/ns/uts")
    for _ in range(200):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/ns/uts") != mine and open(f"/proc/{pid}/comm").read() == "sleep\n":
                return
        time.sleep(0.02)
    sys.exit("bench/hosts.py: this machine makes no namespaces")


class Sampler:
    """The counters of both hosts every few milliseconds, and how much rank 0 has written of its steps."""

    def __init__(self, link, progress):
        self.link, self.progress, self.samples, self.over = link, progress, [], threading.Event()
        self.thread = threading.Thread(target=self.run)

    def __enter__(self):
        self.before = [(self.link.counters(host)[0], self.link.on_wire(host)) for host in range(2)]
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()
        after = [(self.link.counters(host)[0], self.link.on_wire(host)) for host in range(2)]
        self.wire = [(b[1] - a[1]) / max(1, b[0] - a[0]) for a, b in zip(self.before, after)]  # bytes there, for one of the interface

    def run(self):
        while not self.over.wait(SAMPLE):
            size = 0
            with contextlib.suppress(OSError):
                size = os.stat(self.progress).st_size
            self.samples.append((time.perf_counter(), size, self.link.counters(0), self.link.counters(1)))

    def traffic(self, steps, skip=3):
        """(payload of a step of the host that sends more, share of the rate between first and last byte of a step)."""
        ends = [i for i in range(1, len(self.samples)) if self.samples[i][1] != self.samples[i - 1][1]][-steps:]
        if len(ends) < steps:
            sys.exit(f"bench/hosts.py: {len(ends)} steps were seen, of {steps}")
        ends = ends[skip - 1:]  # from the end of the last one that does not count

        def sent(host, part, first, last):
            return self.samples[last][2 + host][part] - self.samples[first][2 + host][part]
        payload = [sent(h, 0, ends[0], ends[-1]) - HEADERS * sent(h, 1, ends[0], ends[-1]) for h in range(2)]
        most = payload.index(max(payload))
        return max(payload) / (len(ends) - 1), statistics.median(self.busy(most, a, b, sent) for a, b in zip(ends, ends[1:]))

    def busy(self, host, first, last, sent):
        quiet = 0.02 * self.link.bytes_a_second * SAMPLE
        moving = [i for i in range(first, last) if sent(host, 0, i, i + 1) > quiet]
        if len(moving) < 3:
            return float("nan")
        a, b = moving[0] + 1, moving[-1]  # whole samples alone
        return sent(host, 0, a, b) * self.wire[host] / (self.link.bytes_a_second * (self.samples[b][0] - self.samples[a][0]))


def plain(link):
    """Share of the rate that one connection reaches, by the same sampler."""
    send = "import socket,sys,time\nwhile True:\n  try: s=socket.create_connection((sys.argv[1],29500));break\n  except OSError: time.sleep(.05)\nend=time.time()+1.5\nb=bytes(1<<20)\nwhile time.time()<end: s.sendall(b)"
    take = "import socket\ns=socket.create_server(('',29500)).accept()[0]\nwhile s.recv(1<<20): pass"
    with Sampler(link, os.devnull) as seen:
        ranks = [subprocess.Popen([*link.inside(0), sys.executable, "-c", send, ADDRESSES[1]]), subprocess.Popen([*link.inside(1), sys.executable, "-c", take])]
        finish(ranks, 60)
    s = seen.samples
    return seen.busy(0, 0, len(s) - 1, lambda host, part, a, b: s[b][2 + host][part] - s[a][2 + host][part])


def finish(ranks, limit, log=None):
    end = time.monotonic() + limit
    try:
        while any(p.poll() is None for p in ranks):
            if time.monotonic() > end or any(p.poll() for p in ranks):
                break
            time.sleep(0.02)
    finally:
        fault = any(p.poll() != 0 for p in ranks)
        for p in ranks:
            p.kill()
            p.wait()
    if fault:
        sys.exit(f"bench/hosts.py: a rank failed, or took longer than {limit} s\n" + "".join(f"--- {f}\n{open(f).read()[-2000:]}" for f in log or []))


def start(a, folder, before, rank, world, each, command, environment):
    """A rank; what it prints goes to folder/rank.N."""
    variables = dict(environment, RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank % each), LOCAL_WORLD_SIZE=str(each), MASTER_ADDR=ADDRESSES[0], MASTER_PORT="29555",
                     OMP_NUM_THREADS="1")
    with open(f"{folder}/rank.{rank}", "w") as out:
        return subprocess.Popen([*before, *command], stdout=out, stderr=subprocess.STDOUT, env=variables)


def job(folder, fixture, strategy, ranks, steps, name="bench"):
    tables = {"fsdp2": 'strategy = "fsdp2"', "ddp": 'strategy = "ddp"', "hsdp": 'strategy = "fsdp2"\ndp_replicate_size = 2',
              "zero1": 'strategy = "megatron_fsdp"\n[distributed.megatron_fsdp]\nzero_dp_strategy = 1'}[strategy]
    os.makedirs(f"{folder}/{name}", exist_ok=True)
    return jobs.write(f"{folder}/{name}", f'pretrained = "{fixture}/llama"', tables, 2 * ranks, 2, steps, jobs.tokens(f"{fixture}/train.bin", 128))


def ours(a, folder, fixture, link, strategy, each):
    world = 2 * each
    text = job(folder, fixture, strategy, world, a.steps)
    shutil.rmtree(f"{folder}/bench/runs", ignore_errors=True)
    metrics = f"{folder}/bench/runs/bench/metrics.jsonl"
    with Sampler(link, metrics) as seen:
        ranks = [start(a, folder, link.inside(r // each), r, world, each, [f"{a.build}/bin/meshwright", "train", text, *(w for o in a.set for w in ("--set", o))], dict(os.environ, **a.paced)) for r in range(world)]
        finish(ranks, LIMIT, [f"{folder}/rank.{r}" for r in range(world)])
    return jobs.rows(metrics), seen


def theirs(a, folder, fixture, link, strategy, each):
    world = 2 * each
    name = "ddp" if strategy == "zero1" else strategy
    command = [sys.executable, os.path.join(jobs.ROOT, "tests/reference_pytorch/peer_train.py"), "--impl", "lean", "--model", f"{fixture}/llama", "--tokens", f"{fixture}/train.bin",
               "--strategy", name, "--dp-replicate", "2" if name == "hsdp" else "1", "--seq-len", "128", "--micro-batch", "2", "--steps", str(a.steps), "--out", f"{folder}/peer.jsonl"]
    environment = dict(os.environ, PYTHONPATH=os.path.join(a.deps, "python"), GLOO_SOCKET_IFNAME="net0", **a.paced)
    with Sampler(link, f"{folder}/rank.0") as seen:
        ranks = [start(a, folder, link.inside(r // each), r, world, each, command, environment) for r in range(world)]
        finish(ranks, LIMIT, [f"{folder}/rank.{r}" for r in range(world)])
    return jobs.rows(f"{folder}/peer.jsonl"), seen


def least_bytes(fixture, strategy):
    """That leave a host in a step; layers are gathered twice, but the last, and what lies outside them once."""
    import json, struct
    with open(f"{fixture}/llama/model.safetensors", "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    sizes = {name: t["data_offsets"][1] - t["data_offsets"][0] for name, t in header.items() if name != "__metadata__"}
    everything = sum(sizes.values())
    if strategy != "fsdp2":
        return everything
    layer = lambda name: int(re.search(r"layers\.(\d+)\.", name).group(1)) if "layers." in name else -1
    last = max(map(layer, sizes))
    again = sum(size for name, size in sizes.items() if 0 <= layer(name) < last)
    return (2 * everything + again) / 2


def rows_of_link(a, folder, fixture):
    form = "{:9}{:6}{:8}{:>6}{:>10}{:>10}{:>8}{:>10}{:>10}{:>9}{:>8}{:>8}{:>9}"
    print(form.format("link", "ranks", "strategy", "round", "ours ms", "PyTorch", "ratio", "MB out", "PyTorch", "least", "busy", "PyTorch", "of link"))
    for rate in a.rates:
        with contextlib.closing(Link(rate)) as link:
            print(f"{rate:9}plain: {plain(link):.0%} of the rate", flush=True)
            ratios = {}
            for turn in range(a.rounds):
                for each in a.each:
                    peers = {}
                    for strategy in a.strategies:
                        if strategy == "hsdp" and each == 1:
                            continue  # ddp
                        mine, seen = ours(a, folder, fixture, link, strategy, each)
                        peer = "ddp" if strategy == "zero1" else strategy
                        if peer not in peers:
                            peers[peer] = theirs(a, folder, fixture, link, strategy, each)
                        other, seen_other = peers[peer]
                        worst = max(abs(x["loss"] / y["loss"] - 1) for x, y in zip(mine, other))
                        if worst > 1e-5:
                            sys.exit(f"the losses differ by {worst:.1e}")
                        m, t = jobs.median_step(mine), jobs.median_step(other)
                        (out, busy), (peer_out, peer_busy) = seen.traffic(a.steps), seen_other.traffic(a.steps)
                        least = least_bytes(fixture, strategy)
                        ratios.setdefault((each, strategy), []).append(t / m)
                        print(form.format(rate, f"2 x {each}", strategy, turn + 1, f"{m:.1f}", f"{t:.1f}", f"{t / m:.2f}", f"{out / 1e6:.2f}", f"{peer_out / 1e6:.2f}", f"{least / 1e6:.2f}",
                                          f"{busy:.0%}", f"{peer_busy:.0%}", f"{least * max(seen.wire) / link.bytes_a_second / m * 1e3:.0%}"), flush=True)
            for (each, strategy), found in ratios.items():
                print(form.format(rate, f"2 x {each}", strategy, "median", "", "", f"{statistics.median(found):.2f}", *[""] * 6).rstrip(), flush=True)


def one_host(a, folder, fixture):
    """ddp over two ranks, beside two ranks that know nothing of each other."""
    shares = []
    for turn in range(2 * a.rounds):
        found = jobs.run(a.build, f"{folder}/pair", job(folder, fixture, "ddp", 2, 3 * a.steps, "pair"), 2, environment=dict(os.environ, OMP_NUM_THREADS="1"))
        texts = [job(folder, fixture, "ddp", 1, 3 * a.steps, f"alone{i}") for i in range(2)]
        for i in range(2):
            shutil.rmtree(f"{folder}/alone{i}/runs", ignore_errors=True)
        logs = [f"{folder}/rank.{i}" for i in range(2)]
        alone = []
        for text, log in zip(texts, logs):
            with open(log, "w") as out:
                alone.append(subprocess.Popen([*BOUND, f"{a.build}/bin/meshwright", "train", text], stdout=out, stderr=subprocess.STDOUT, env=dict(os.environ, OMP_NUM_THREADS="1")))
        finish(alone, LIMIT, logs)
        bound = statistics.mean(jobs.median_step(jobs.rows(f"{folder}/alone{i}/runs/bench/metrics.jsonl")) for i in range(2))
        m = jobs.median_step(found)
        shares.append(bound / m)
        print(f"one host  ddp on 2 ranks, round {turn + 1}: {m:.1f} ms a step, {bound:.1f} ms by themselves at once: {bound / m:.0%} of the bound", flush=True)
    print(f"one host  ddp on 2 ranks, median: {statistics.median(shares):.0%} of the bound")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default=os.path.join(jobs.ROOT, "build"))
    p.add_argument("--deps", default=os.environ.get("MESHWRIGHT_DEPS", os.path.join(jobs.ROOT, ".deps")))
    p.add_argument("--rates", nargs="*", default=["100mbit", "1gbit"])
    p.add_argument("--each", nargs="*", type=int, default=[1, 2], help="ranks of a host")
    p.add_argument("--strategies", nargs="*", default=["fsdp2", "ddp", "hsdp", "zero1"], choices=["fsdp2", "ddp", "hsdp", "zero1"])
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--steps", type=int, default=8)
    p.add_argument("--no-one-host", action="store_true")
    p.add_argument("--flow", metavar="RATE", help="the most that one connection sends")
    p.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="keys of our jobs over the link")
    a = p.parse_args()
    a.build, a.deps = os.path.abspath(a.build), os.path.abspath(a.deps)
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    missing = [tool for tool in ("ip", "tc", "unshare", "nsenter", "setpriv") if shutil.which(tool) is None]
    if missing or os.geteuid() != 0:
        sys.exit("bench/hosts.py: needs root and iproute2 and util-linux" + "".join(f"; there is no {tool}" for tool in missing))
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory() as folder:
        a.paced = paced(folder, a.flow) if a.flow else {}
        fixture = jobs.make_fixture(folder, "small", dict(os.environ, PYTHONPATH=os.path.join(a.deps, "python")), "llama")
        if a.rates:
            rows_of_link(a, folder, fixture)
        if not a.no_one_host:
            one_host(a, folder, fixture)


if __name__ == "__main__":
    main()
