"""Memory that calls leave behind: growth, and what is outside torch's allocator per stream."""

import pathlib

import cases
import maxsim
import torch

from . import rows, scoring
from .world import reported

CALLS = 100_000
N_STREAMS = 32
#: A page or two that the interpreter takes in 10⁵ calls are no growth: 10 bytes a call would be.
HOST_BYTES = 1 << 20
GOAL_GROWTH = rows.Goal(
    "no growth over 10⁵ calls", (("ours", "<=", 0), ("host_bytes", "<=", HOST_BYTES))
)
GOAL_STREAM = rows.Goal(
    "under 0.5 MB outside torch's allocator per stream at steady state", (("ours", "<=", 0.5),)
)
SMALL = cases.Case("small", "8 × 32 × 8 × 64", 8, 32, 8, 64)


def outside_bytes():
    """Memory of the device that is in use, but not by torch's allocator."""
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


def resident_bytes():
    """Memory of this process that is in host memory."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return None


def workloads(w):
    """What is called again and again, {words: call}."""
    problem = w.problem(w.small(SMALL))
    g = torch.ones(problem.case.n_queries, problem.case.n_docs, device=w.device)
    step = scoring.Step(scoring.score(problem), *scoring.leaves(problem), g)
    forward = scoring.ours(problem)
    generator = torch.Generator().manual_seed(1)
    n, longest = problem.case.n_docs, problem.case.doc_len
    lengths = torch.randint(1, longest + 1, (1024, n), generator=generator).to(w.device)
    queries, documents = problem.queries, problem.padded
    turn = [0]

    def changing():
        turn[0] = (turn[0] + 1) % len(lengths)
        maxsim.maxsim(queries, documents, d_lengths=lengths[turn[0]])

    def shapes():
        turn[0] = (turn[0] + 1) % (longest - 1)
        maxsim.maxsim(queries, documents[:, : turn[0] + 1])

    return {
        "forward": forward,
        "forward + backward": step,
        "forward, other lengths on the device each time": changing,
        "forward, other shapes each time": shapes,
    }


def growth(w):
    """Rows of what 10⁵ calls leave behind."""
    n = w.size(CALLS, 50)
    made = None
    for words in (
        "forward",
        "forward + backward",
        "forward, other lengths on the device each time",
        "forward, other shapes each time",
    ):
        case = f"memory, no growth over 10⁵ calls, {words}"
        with reported(case, GOAL_GROWTH) as found:
            made = made or workloads(w)
            call = made[words]
            for _ in range(max(10, n // 50)):
                call()
            w.timer.synchronize()
            device, host = used(w)
            # Waits now and then, so that what is queued is no growth.
            for i in range(n):
                call()
                if i % 1000 == 999:
                    w.timer.synchronize()
            after_device, after_host = used(w)
            grown = after_device - device
            found.append(
                rows.row(case, GOAL_GROWTH, grown, "bytes", host_bytes=after_host - host, calls=n)
            )
        yield found


def used(w):
    """Bytes in use of the device, outside torch's allocator and inside, and of the host."""
    if not w.on_gpu:
        return 0, resident_bytes()
    return outside_bytes() + torch.cuda.memory_allocated(), resident_bytes()


def per_stream(w):
    """The row of memory outside torch's allocator, per stream."""
    case = "memory, under 0.5 MB outside torch's allocator per stream at steady state"
    with reported(case, GOAL_STREAM) as found:
        if not w.on_gpu:
            raise ValueError("no GPU")
        problem = w.problem(w.case("multi-32-180"))
        g = torch.ones(problem.case.n_queries, problem.case.n_docs, device=w.device)
        step = scoring.Step(scoring.score(problem), *scoring.leaves(problem), g)
        forward = scoring.ours(problem)
        normalized = scoring.ours(problem, normalize=True)
        for call in (forward, normalized, step):
            call()
        streams = [torch.cuda.Stream() for _ in range(N_STREAMS)]

        def on_each(*calls):
            for stream in streams:
                with torch.cuda.stream(stream):
                    for call in calls:
                        call()
            torch.cuda.synchronize()

        # What torch's own kernels take on a new stream is not ours.
        on_each(lambda: problem.queries.float().sum().add_(1))
        before = outside_bytes()
        on_each(forward, normalized, step, step)
        after = outside_bytes()
        each = (after - before) / N_STREAMS / 1e6
        found.append(rows.row(case, GOAL_STREAM, max(0.0, each), "MB", n_streams=N_STREAMS))
    yield found


def memory(w):
    """All rows of memory."""
    yield from growth(w)
    yield from per_stream(w)
