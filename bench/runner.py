"""What all cases run with: calls of ours, checks, and what is measured once."""

import time
import types

import torch

import data
import ours
import timing

# Relative errors against float64. Ours adds up exact products (of split f32 numbers: within 2^-21)
# in f32; TF32 rounds the operands, and the peers' bound only tells a slow right answer from a fast
# wrong one.
TOLERANCE, TOLERANCE_TF32, TOLERANCE_PEERS = 1e-5, 1e-2, 2e-2
SAMPLE = 24


class Prepared:
    """A call of ours that is ready to run, into scores of its own."""

    winners = None

    def __init__(self, bench, problem, options=""):
        self.device = bench.device
        self.scores = torch.full((problem.n_scores(),), torch.nan, device=problem.device)
        if "winners=1" in options:
            case = problem.case
            n_bytes = problem.n_scores() * case.query_len * (2 if case.doc_len < 65535 else 4)
            self.winners = torch.zeros(n_bytes, dtype=torch.uint8, device=problem.device)
        # The second time, when kernels are loaded, so that their code is not counted.
        self.build(problem, options)
        self.free()
        free = bench.timer.free_bytes()
        self.build(problem, options)
        self.device_bytes = max(0, free - bench.timer.free_bytes())

    def build(self, problem, options):
        """Handles and a prepared call, and its first run."""
        case = problem.case
        self.handles = self.tokens(problem)
        candidates = case.n_docs if case.kind == "candidates" else 0
        winners = self.winners.data_ptr() if self.winners is not None else 0
        self.call = ours.Call(
            self.device, *self.handles, candidates, options, self.scores_address(), winners
        )
        self.call()

    def scores_address(self):
        """Where the call puts its scores."""
        return self.scores.data_ptr()

    def run(self):
        """One call into poisoned scores."""
        self.scores.fill_(torch.nan)
        self.call()
        return self.scores

    def free(self):
        self.call.free()
        self.device.free(*self.handles)


class Ours(Prepared):
    """A variant of maxsim on a problem's tensors."""

    def __init__(self, bench, problem, variant, options):
        self.variant = variant
        self.element = variant.element or problem.case.element
        dtype = data.DTYPES[self.element]
        self.queries, self.documents = (x.to(dtype) for x in (problem.queries, problem.documents))
        if variant.masked and problem.mask is None:
            problem.draw_mask()
        super().__init__(bench, problem, options)

    def tokens(self, problem):
        """Handles of queries and documents."""
        case, tokens = problem.case, self.device.tokens
        offsets = problem.offsets.tolist() if problem.offsets is not None else None
        mask = problem.mask.data_ptr() if self.variant.masked else 0
        queries = (self.queries.data_ptr(), case.dim, case.n_queries, case.query_len)
        documents = (self.documents.data_ptr(), case.dim, problem.n_items, case.doc_len)
        return [tokens(self.element, *queries), tokens(self.element, *documents, offsets, mask)]


class Bench:
    """What a process has for its case."""

    def __init__(self, args):
        self.args = args
        self.on_gpu = args.device == "cuda"
        self.timer = timing.Cuda(torch) if self.on_gpu else timing.Cpu()
        stream = torch.cuda.current_stream().cuda_stream if self.on_gpu else 0
        self.device = ours.Device(0 if self.on_gpu else -1, stream)

    def variant(self, problem, variant):
        """Ours ready to run; the fastest of the kernels where a kind of kernel is asked for."""
        if not variant.row:
            return Ours(self, problem, variant, variant.options)
        names = [
            name
            for name in self.device.about["kernels"]
            if name.startswith(variant.row) and "winners" not in name
        ]
        best, best_ms, refused = None, float("inf"), []
        for name in names:
            try:
                one = Ours(self, problem, variant, f"kernel={name}")
            except ours.Error as error:
                refused.append(str(error))
                continue
            ms = min(self.timer.device_ms(one.call, timing.SLEEP_US_MIN, True) for _ in range(3))
            if best is not None and ms >= best_ms:
                one.free()
                continue
            if best is not None:
                best.free()
            best, best_ms = one, ms
        if best is None:
            raise ours.Error(f"no kernel {variant.row}*: {'; '.join(refused)}")
        return best

    def measure(self, methods, **more):
        quick = self.args.quick
        seconds = 1.0 if quick else self.args.seconds
        options = {"rounds_min": 5, "rounds_max": 9, "warm": False} if quick else {}
        return timing.measure(self.timer, methods, seconds, **(options | more))


def bench_of(w):
    """The library's interface in the process of a world (bench/python/world.py)."""
    options = {"device": w.device, "quick": w.tiny, "seconds": w.seconds}
    return Bench(types.SimpleNamespace(**options))


def check(bench, problem, call, sample, bound, masked=False):
    """The first call: its results against float64, and how long it took to get ready."""
    start = time.perf_counter()
    scores = call()
    bench.timer.synchronize()
    seconds = time.perf_counter() - start
    error = problem.largest_error(scores, sample, masked)
    if not error <= bound:
        raise ValueError(f"scores are off by {error:.2e} relative")
    return {"first_call_s": round(seconds, 3), "largest_relative_error": error}


def check_peers(bench, problem, others, sample):
    """The peers' calls that give what they should, {name: call}, what is known of them, and why the
    others are none."""
    methods, checked, failed = {}, {}, {}
    for name, call in others.items():
        try:
            if isinstance(call, Exception):
                raise call
            checked[name] = check(bench, problem, call, sample, TOLERANCE_PEERS)
            methods[name] = call
        except Exception as error:
            failed[name] = timing.said(error)
            if bench.on_gpu:
                torch.cuda.empty_cache()
    return methods, checked, failed


def reads_of(bench, stream, matrix):
    """The read-only kernel over a matrix, {name: call}; nothing on the CPU."""
    read = bench.device.read
    return {f"read x{n}": read(stream, matrix, n) for n in ours.READ_GRIDS} if bench.on_gpu else {}


def details(bench, call, own):
    """What is measured once: the whole call, memory, and our cost without Python."""
    n = 2 if bench.args.quick else 5
    if own is None:
        whole = call
        found = {"device_bytes": bench.timer.peak_bytes(call)}
    else:
        whole = own.call.unprepared if own.winners is None else None
        found = {
            "device_bytes": own.device_bytes,
            "enqueue_rust_us": round(min(own.call.enqueue_us(16) for _ in range(3)), 3),
            "plan": own.call.plan.splitlines()[0],
        }
        bench.timer.synchronize()
    if whole is not None:
        found["call_ms"] = round(sorted(bench.timer.call_ms(whole) for _ in range(n))[n // 2], 4)
    return found


def shape_of(case, problem):
    """What a row says of its case's shape."""
    return {
        "n_queries": case.n_queries,
        "n_docs": case.n_docs,
        "query_len": case.query_len,
        "doc_len": case.doc_len,
        "n_doc_tokens": problem.n_rows,
        "dim": case.dim,
    }
