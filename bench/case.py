"""One case in this process: waits for a line on standard input, measures, writes JSON.

    case.py NAME --result FILE [--seconds S] [--quick] [--variants N] [--no-peers] ...

Everything heavy is imported before the line arrives, so that the next case's start can hide
behind the one that runs. The campaign (campaign.py) starts these.
"""

import argparse
import json
import pathlib
import sys

import torch

import cases
import compressed
import data
import peers
import timing
from runner import (
    SAMPLE,
    TOLERANCE,
    TOLERANCE_TF32,
    Bench,
    Ours,
    check,
    check_peers,
    details,
    reads_of,
    shape_of,
)


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
    right, found, wrong = check_peers(bench, problem, others, sample)
    methods, checked, failed = methods | right, checked | found, failed | wrong
    reads = {}
    if ready:
        one = next(iter(ready.values()))
        reads = reads_of(bench, one.call.stream, one.handles[1])
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
        row(bench, case, variant, problem, results, list(others), read_ms) for variant in variants
    ]


def row(bench, case, variant, problem, results, others, read_ms):
    """What the report needs of a variant; limits are added where the roofs are known."""
    element = variant.element or case.element
    found = {
        "case": case.words + variant.words,
        "name": case.name,
        **shape_of(case, problem),
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
            results[name]["device_bytes"] = (
                own.device_bytes if own else bench.timer.peak_bytes(call)
            )
        except Exception as error:
            results[name]["details_error"] = timing.said(error)
    shape = {
        key: getattr(case, key)
        for key in ("n_queries", "n_docs", "query_len", "doc_len", "dim", "element")
    }
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
        name: result
        | ({"tflop_per_s": round(2 * n**3 / result["ms"] / 1e9, 1)} if "ms" in result else {})
        for name, result in results.items()
    }


def compile_peers(case, args):
    """The peers' first calls, for what their compilers leave in the cache."""
    make = compressed.PROBLEMS.get(case.format, data.Problem)
    for call in peers.calls(make(case.scaled(args.scale), args.device)).values():
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
        elif case.format:
            found["rows"] = compressed.run_case(bench, case)
        else:
            found["rows"] = run_case(bench, case, args.variants)
    args.result.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
