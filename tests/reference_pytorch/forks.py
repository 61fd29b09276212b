"""Work in forks of a process that has imported torch and transformers, which takes longer than most of what is compared here.

Import this before torch: a process with threads must not be forked, so torch gets one.
"""
import multiprocessing, os, random, socket, sys
from multiprocessing.connection import wait

os.environ["OMP_NUM_THREADS"] = "1"


def free_port():
    """One below the kernel's own range, whose ports it may give to any connection before rank 0 listens."""
    while True:
        port = random.randrange(10000, 20000)
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as rank 0's own
            try:
                s.bind(("127.0.0.1", port))
                return port
            except OSError:
                pass  # somebody listens there


def run_ranks(main, words, ranks=1):
    """main(words) in so many forks, with the environment that torchrun gives them. They print nothing but errors; if one fails, so does this program."""
    port = free_port()

    def run(rank):
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        sys.stdout = open(os.devnull, "w")
        main(words)

    processes = [multiprocessing.get_context("fork").Process(target=run, args=(rank,)) for rank in range(ranks)]
    for process in processes:
        process.start()
    left = list(processes)
    while left:
        wait([process.sentinel for process in left])
        left = [process for process in left if process.is_alive()]
        if any(process.exitcode for process in processes):
            for process in left:
                process.kill()
            sys.exit(f"a rank of {' '.join(words)} failed")
