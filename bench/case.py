"""One case in this process: waits for a line on standard input, measures, writes JSON.

    case.py NAME --result FILE [--seconds S] [--quick] [--variants N] [--no-peers] ...

Everything heavy is imported before the line arrives, so that the next case's start can hide
behind the one that runs. The campaign (campaign.py) starts these.
"""

import argparse
import json
import pathlib
import sys
import time

import torch

import cases
import data
import ours
import peers
import timing

# Relative errors against float64. Ours adds up exact products (of split f32 numbers: within 2^-21)
# in f32; TF32 rounds the operands, and the peers' bound only tells a slow right answer from a fast
# wrong one.
TOLERANCE, TOLERANCE_TF32, TOLERANCE_PEERS = 1e-5, 1e-2, 2e-2
SAMPLE = 24


class Ours:
    """A variant of maxsim on a problem's tensors."""

    def __init__(self, bench, problem, variant, options):
        case, device = problem.case, bench.device
        element = variant.element or case.element
        dtype = data.DTYPES[element]
        self.device, self.variant = device, variant
        self.queries, self.documents = (x.to(dtype) for x in (problem.queries, problem.documents))
        if variant.masked and problem.mask is None:
            problem.draw_mask()
        self.scores = torch.full((problem.n_scores(),), torch.nan, device=problem.device)
        self.winners = None
        if "winners=1" in options:
            n_bytes = problem.n_scores() * case.query_len * (2 if case.doc_len < 65535 else 4)
            self.winners = torch.zeros(n_bytes, dtype=torch.uint8, device=problem.device)
        # The second time, when kernels are loaded, so that their code is not counted.
        self.build(problem, element, options)
        self.free()
        free = bench.timer.free_bytes()
        self.build(problem, element, options)
        self.device_bytes = max(0, free - bench.timer.free_bytes())

    def build(self, problem, element, options):
        """Handles and a prepared call, and its first run."""
        case, tokens = problem.case, self.device.tokens
        offsets = problem.offsets.tolist() if problem.offsets is not None else None
        mask = problem.mask.data_ptr() if self.variant.masked else 0
        queries = (self.queries.data_ptr(), case.dim, case.n_queries, case.query_len)
        documents = (self.documents.data_ptr(), case.dim, problem.n_items, case.doc_len)
        self.handles = [tokens(element, *queries), tokens(element, *documents, offsets, mask)]
        candidates = case.n_docs if case.kind == "candidates" else 0
        winners = self.winners.data_ptr() if self.winners is not None else 0
        scores = self.scores.data_ptr()
        self.call = ours.Call(self.device, *self.handles, candidates, options, scores, winners)
        self.call()

    def run(self):
        """One call into poisoned scores."""
        self.scores.fill_(torch.nan)
        self.call()
        return self.scores

    def free(self):
        self.call.free()
        self.device.free(*self.handles)


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


def run_case(bench, case, n_variants):
    """The rows of a case."""
    problem = data.Problem(case, bench.args.device)
    variants = case.variants[: n_variants or None]
    if any(variant.masked for variant in variants):
        problem.draw_mask()
    ready, failed, checked = {}, {}, {}
    for variant in variants:
        name = f"maxsim{variant.words}"
        try:
            ready[name] = bench.variant(problem, variant)
            sample = problem.sample(SAMPLE, data.DTYPES[variant.element or case.element])
            bound = TOLERANCE_TF32 if "tf32" in variant.options else TOLERANCE
            checked[name] = check(bench, problem, ready[name].run, sample, bound, variant.masked)
        except Exception as error:
            failed[name] = timing.said(error)
    methods = {name: one.call for name, one in ready.items() if name not in failed}
    others = {} if bench.args.no_peers else peers.calls(problem)
    sample = problem.sample(SAMPLE, data.DTYPES[case.element])
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
    reads = {}
    if bench.on_gpu and ready:
        one = next(iter(ready.values()))
        read = bench.device.read
        reads = {f"read x{n}": read(one.call.stream, one.handles[1], n) for n in ours.READ_GRIDS}
    results = bench.measure(methods | reads)
    for name, error in failed.items():
        results[name] = {"error": error}
    for name in methods:
        results[name] |= checked[name]
        try:
            results[name] |= details(bench, methods[name], ready.get(name))
        except Exception as error:
            results[name]["details_error"] = timing.said(error)
    read_ms = min((results[name]["ms"] for name in reads if "ms" in results[name]), default=None)
    return [
        row(bench, case, variant, problem, results, list(others), read_ms)
        for variant in variants
    ]


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


def row(bench, case, variant, problem, results, others, read_ms):
    """What the report needs of a variant; limits are added where the roofs are known."""
    element = variant.element or case.element
    found = {
        "case": case.words + variant.words,
        "name": case.name,
        "n_queries": case.n_queries,
        "n_docs": case.n_docs,
        "query_len": case.query_len,
        "doc_len": case.doc_len,
        "n_doc_tokens": problem.n_rows,
        "dim": case.dim,
        "element": element,
        "flop": problem.flop(),
        "bytes": problem.n_rows * case.dim * cases.ELEMENT_BYTES[element],
        "rate": variant.rate or {"bf16": "f16"}.get(element, element),
        "read_ms": read_ms,
        "targets": {"x": variant.x, "limit": variant.limit, "plain": variant.plain},
        "ours": results[f"maxsim{variant.words}"],
        "peers": {name: results[name] for name in others} if variant.peers else {},
    }
    if variant is not case.variants[0] and variant.plain is not None:
        found["plain_ms"] = results[f"maxsim{case.variants[0].words}"].get("ms")
    return found


def run_scaling(bench, case):
    """The time against the number of documents, which are the first n of the largest set; a list
    that grows point by point."""
    scale = bench.args.scale
    largest = data.Problem(case.scaled(scale), bench.args.device)
    points = []
    for n in cases.SCALING_N_DOCS:
        part = largest.first(max(3, int(n * scale)))
        one = Ours(bench, part, cases.Variant(), "")
        methods = {"maxsim": one.call}
        if not bench.args.no_peers:
            methods |= {k: v for k, v in peers.calls(part).items() if not isinstance(v, Exception)}
        results = bench.measure(methods, warm=False, rounds_max=12)
        points.append({"n_docs": part.case.n_docs, "doc_len": case.doc_len, "results": results})
        yield points
        one.free()


def run_baseline(bench, case):
    """maxsim beside plain PyTorch."""
    problem = data.Problem(case, bench.args.device)
    one = Ours(bench, problem, cases.Variant(), "")
    methods = {"maxsim": one.call} | peers.pytorch(problem)
    results = bench.measure(methods, rounds_max=12)
    for name, call in methods.items():
        try:
            own = one if name == "maxsim" else None
            results[name]["device_bytes"] = own.device_bytes if own else bench.timer.peak_bytes(call)
        except Exception as error:
            results[name]["details_error"] = timing.said(error)
    shape = {key: getattr(case, key) for key in ("n_queries", "n_docs", "query_len", "doc_len", "dim", "element")}
    return [{"case": case.words, "name": case.name, **shape, "results": results}]


def run_roofs(bench):
    """Rates of matrix products of 8192^3 on random data, in TFLOP/s."""
    n = 8192 if bench.on_gpu else 64
    a, b = (torch.randn(n, n, device=bench.args.device) for _ in range(2))
    half = a.half(), b.half()

    def precise(allowed):
        def product():
            torch.backends.cuda.matmul.allow_tf32 = allowed
            return a @ b

        return product

    methods = {"f16": lambda: half[0] @ half[1], "tf32": precise(True), "f32": precise(False)}
    if bench.on_gpu:
        one = torch.tensor(1.0, device="cuda")
        eighth = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t()
        methods["f8"] = lambda: torch._scaled_mm(*eighth, one, one, out_dtype=torch.bfloat16)
    results = bench.measure(methods, rounds_max=15, warm=False)
    return {
        name: result | ({"tflop_per_s": round(2 * n**3 / result["ms"] / 1e9, 1)} if "ms" in result else {})
        for name, result in results.items()
    }


def compile_peers(case, args):
    """The peers' first calls, for what their compilers leave in the cache."""
    for call in peers.calls(data.Problem(case.scaled(args.scale), args.device)).values():
        try:
            call()
        except Exception as error:  # the case itself will say so
            print(timing.said(error), file=sys.stderr)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--result", type=pathlib.Path, required=True)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--variants", type=int, default=0, help="only the first so many")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--compile-only", action="store_true", help="only the peers' first calls")
    args = parser.parse_args()
    for name in ("flash_maxsim", "late_interaction_kernels"):
        try:
            __import__(name)
        except Exception:
            pass  # its calls will say so
    if not sys.stdin.readline():
        return
    if args.compile_only:
        return compile_peers(cases.BY_NAME[args.name], args)
    bench = Bench(args)
    found = {"versions": {"torch": torch.__version__}, "gpu": bench.device.about["name"]}
    if args.name == "roofs":
        found["roofs"] = run_roofs(bench)
    elif args.name == cases.SCALING.name:
        for points in run_scaling(bench, cases.SCALING):
            found["scaling"] = points
            args.result.write_text(json.dumps(found))
    else:
        case = cases.BY_NAME[args.name]
        if args.scale != 1:
            case = case.scaled(args.scale)
        if case.name.startswith("pytorch-"):
            found["baselines"] = run_baseline(bench, case)
        else:
            found["rows"] = run_case(bench, case, args.variants)
    args.result.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
