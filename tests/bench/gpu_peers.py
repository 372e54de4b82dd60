"""Times maxsim beside flash-maxsim and late-interaction-kernels on one GPU: same data, interleaved.

    python tests/bench/gpu_peers.py --program ./maxsim_bench --output gpu_peers.json

Before each timed call 512 MB are read, so that the L2 cache holds clean lines of something else.
Times are medians of CUDA-event differences. Every result is compared with float64 products
before anything is timed. Needs torch, flash-maxsim 0.3.0 and late-interaction-kernels 0.4.5.
"""

import argparse
import datetime
import importlib.metadata
import json
import pathlib
import statistics
import subprocess
import tempfile

import torch

# (name, queries, query tokens, documents, document tokens)
SHAPES = [
    ("page images", 1, 1024, 10000, 1024),
    ("page images, 1000", 1, 1024, 1000, 1024),
    ("visual", 1, 512, 10000, 1024),
    ("medium", 1, 128, 10000, 1024),
    ("passages", 1, 32, 10000, 300),
    ("32 short queries", 32, 32, 1024, 180),
]
DIM = 128
TOLERANCE = 1e-6  # relative, of our scores; the peers' are only reported


class Maxsim:
    """The library, in a process of its own that times its kernels with events."""

    def __init__(self, program, setup):
        self.process = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.ready = self.ask(setup)
        if not self.ready.startswith("ready"):
            raise SystemExit(f"{program} did not start: {self.ready!r}")

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def device_ms(self):
        return float(self.ask("device"))

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def unit(*shape):
    tokens = torch.randn(*shape, device="cuda")
    return torch.nn.functional.normalize(tokens, dim=-1).half()


def exact(queries, documents):
    """Scores in float64, a few documents at a time."""
    q = queries.double().reshape(-1, DIM)
    step = max(1, (1 << 27) // (q.shape[0] * documents.shape[1]))
    rows = []
    for first in range(0, documents.shape[0], step):
        similarity = torch.einsum("qd,btd->qbt", q, documents[first : first + step].double())
        rows.append(similarity.amax(2))
    return torch.cat(rows, 1).reshape(*queries.shape[:2], -1).sum(1)


def event_ms(call, flush):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(1_500_000)
    flush.sum()
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end)


def bench(args, folder, flush, name, n_queries, query_len, n_documents, document_len):
    import flash_maxsim
    import late_interaction_kernels

    queries = unit(n_queries, query_len, DIM)
    documents = unit(n_documents, document_len, DIM)
    data = folder / "tokens"
    with open(data, "wb") as file:
        for tokens in (queries, documents):
            file.write(tokens.cpu().numpy().data)
    maxsim = Maxsim(
        args.program,
        f"device=cuda:0 element=f16 queries={n_queries} query_len={query_len} "
        f"documents={n_documents} document_len={document_len} dim={DIM} data={data}",
    )
    data.unlink()
    peers = {
        "flash-maxsim": lambda: flash_maxsim.flash_maxsim_batched(queries, documents, shared_docs=True)
        if n_queries > 1
        else flash_maxsim.flash_maxsim(queries[0], documents),
        "late-interaction-kernels": lambda: late_interaction_kernels.maxsim(queries, documents),
    }

    reference = exact(queries, documents)
    maxsim.ask(f"scores {folder / 'scores'}")
    ours = torch.frombuffer(bytearray((folder / "scores").read_bytes()), dtype=torch.float32)
    errors = {"maxsim": ours.cuda().reshape(reference.shape)}
    errors |= {peer: call().float().reshape(reference.shape) for peer, call in peers.items()}
    errors = {
        who: float(((scores - reference) / reference).abs().max()) for who, scores in errors.items()
    }
    if not errors["maxsim"] <= TOLERANCE:
        raise SystemExit(f"{name}: scores are off by {errors['maxsim']:.2e} relative")

    calls = {"maxsim": maxsim.device_ms}
    calls |= {peer: (lambda call=call: event_ms(call, flush)) for peer, call in peers.items()}
    times = {who: [] for who in calls}
    for repeat in range(args.warmups + args.repeats):
        for who, time_ms in calls.items():
            elapsed = time_ms()
            if repeat >= args.warmups:
                times[who].append(elapsed)
    workspace_bytes = int(maxsim.ask("memory"))
    maxsim.close()

    flop = 2 * n_queries * query_len * n_documents * document_len * DIM
    n_bytes = 2 * DIM * n_documents * document_len
    results = {}
    print(f"{name}: {n_queries} x {query_len} tokens, {n_documents} x {document_len}  {maxsim.ready}")
    for who, ms in times.items():
        median = statistics.median(ms)
        quartiles = statistics.quantiles(ms, n=4)
        results[who] = {
            "median_ms": median,
            "quartiles_ms": [quartiles[0], quartiles[2]],
            "times_ms": ms,
            "tflop_per_s": flop / median / 1e9,
            "largest_relative_error": errors[who],
        }
        print(
            f"  {who:25} {median:8.4f} ms ({quartiles[0]:.4f} to {quartiles[2]:.4f})"
            f" {flop / median / 1e9:6.0f} TFLOP/s  error {errors[who]:.1e}"
        )
    fastest = min(results[peer]["median_ms"] for peer in peers)
    ratio = fastest / results["maxsim"]["median_ms"]
    print(f"  {ratio:.2f} x the faster peer; device memory beyond inputs and outputs {workspace_bytes} B")
    shape = {
        "name": name,
        "queries": n_queries,
        "query_len": query_len,
        "documents": n_documents,
        "document_len": document_len,
        "dim": DIM,
        "element": "f16",
    }
    floors = {"flop": flop, "document_bytes": n_bytes}
    return {
        "shape": shape,
        "floors": floors,
        "plan": maxsim.ready,
        "faster_than_best_peer_by": ratio,
        "device_bytes_beyond_inputs_and_outputs": workspace_bytes,
        "results": results,
    }


def plot(record, path):
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 4.5))
    names = [run["shape"]["name"] for run in record["runs"]]
    for i, who in enumerate(record["runs"][0]["results"]):
        rates = [run["results"][who]["tflop_per_s"] for run in record["runs"]]
        axes.bar([x + 0.27 * (i - 1) for x in range(len(names))], rates, 0.25, label=who)
    axes.set_xticks(range(len(names)), names, rotation=15)
    axes.set_ylabel("TFLOP/s (useful)")
    axes.set_title(f"MaxSim forward, f16, dim {DIM}, {record['gpu']}")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default="./maxsim_bench")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--warmups", type=int, default=4)
    parser.add_argument("--shapes", type=int, default=len(SHAPES), help="how many of the shapes")
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--plot", type=pathlib.Path)
    args = parser.parse_args()
    torch.manual_seed(0)
    flush = torch.zeros(128 << 20, device="cuda")
    with tempfile.TemporaryDirectory() as folder:
        runs = []
        for shape in SHAPES[: args.shapes]:
            runs.append(bench(args, pathlib.Path(folder), flush, *shape))
            torch.cuda.empty_cache()
    packages = ("torch", "triton", "flash-maxsim", "late-interaction-kernels")
    record = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "gpu": torch.cuda.get_device_name(),
        "driver": subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=False,
        ).stdout.strip(),
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "protocol": "interleaved, 512 MB read before each call, CUDA events, medians",
        "runs": runs,
    }
    if args.output:
        args.output.write_text(json.dumps(record, indent=1) + "\n")
    if args.plot:
        plot(record, args.plot)


if __name__ == "__main__":
    main()
