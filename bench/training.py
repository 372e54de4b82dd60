#!/usr/bin/env python3
"""Times a training step, forward and `scores.backward(g)` with a fixed g, beside both peers.

    training.py all --out DIR            every case into DIR/training.json, case by case
    training.py CASE ... --out DIR       these cases; `training.py list` prints their names

Protocol as in the forward campaign (timing.py), in one process per run of this script. Ours is the
owner strategy in f16, gradients in f16. Needs what campaign.py needs, and a GPU.
"""

import argparse
import dataclasses
import datetime
import json
import os
import pathlib
import sys
import tempfile

import torch

import cases
import data
import ours
import record
import timing

PROTOCOL = (
    "each method runs forward and scores.backward(g) with the same fixed g and no loss; methods "
    "in turns, the first another each round; 512 MB read before each timed step; medians of "
    "CUDA-event differences with the queue kept full; winners and gradients compared with an f32 "
    "reference first"
)
COSINE_MIN = 0.999999


@dataclasses.dataclass(frozen=True)
class Training:
    """A case with its targets."""

    case: cases.Case
    x: float | None
    """The fastest peer's time over ours, at least."""
    limit: float | None = None
    """The traffic floor over our time, at least."""
    gather_floor: float | None = None
    """The gradients' time over the gather floor, at most."""
    hot: float | None = 1.5
    """The gradients' time where every winner is token 0 over that of this case, at most."""
    workspace_mb: float | None = 32
    """Beyond inputs, gradients and winners, at most, in 2^20 bytes."""

    def targets(self):
        return {
            name: getattr(self, name)
            for name in ("x", "limit", "gather_floor", "hot", "workspace_mb")
        }


def in_batch(name, n, query_len, doc_len, x, **targets):
    words = f"in-batch, {n} of {query_len} x {doc_len}"
    return Training(cases.Case(name, words, n, query_len, n, doc_len), x, **targets)


def candidates(name, n, k, doc_len, x, **targets):
    words = f"{n} queries of 32 x {k} own documents x {doc_len}"
    return Training(cases.Case(name, words, n, 32, k, doc_len, kind="candidates"), x, **targets)


TRAININGS = [
    in_batch("pages-128", 128, 1024, 1024, 2.2, gather_floor=1.8),
    in_batch("pages-64", 64, 1024, 1024, 2.1),
    in_batch("pages-32", 32, 1024, 1024, 1.9),
    in_batch("passages-1024", 1024, 32, 300, 3.3),
    in_batch("passages-512", 512, 32, 300, 3.3),
    in_batch("passages-128", 128, 32, 300, 2.4),
    candidates("candidates-16-1030", 256, 16, 1030, 1.15, limit=0.75),
    candidates("candidates-8-180", 128, 8, 180, 1.4),
    Training(
        cases.Case(
            "ragged-512",
            "ragged in-batch, 512 of 32 x log-normal(4.65, 0.45) in 16-512",
            512,
            32,
            512,
            512,
            kind="ragged",
            lengths="log-normal",
        ),
        4.0,
        workspace_mb=None,
    ),
    # The peers' documents do not show it: alone, for its time and memory.
    in_batch("pages-512", 512, 1024, 1024, None, workspace_mb=None),
]
BY_NAME = {training.case.name: training for training in TRAININGS}


class Ours:
    """A step of ours on a problem's tensors."""

    def __init__(self, problem, g, strategy="owner"):
        case = problem.case
        self.device = ours.Device(0, torch.cuda.current_stream().cuda_stream)
        offsets = problem.offsets.tolist() if problem.offsets is not None else None
        tokens = self.device.tokens
        self.handles = [
            tokens("f16", problem.queries.data_ptr(), case.dim, case.n_queries, case.query_len),
            tokens(
                "f16",
                problem.documents.data_ptr(),
                case.dim,
                problem.n_items,
                case.doc_len,
                offsets,
            ),
        ]
        self.scores = torch.zeros(problem.n_scores(), device="cuda")
        self.winners = torch.zeros(
            problem.n_scores() * case.query_len, dtype=torch.int16, device="cuda"
        )
        self.gradients = [torch.zeros_like(x) for x in (problem.queries, problem.documents)]
        torch.cuda.synchronize()
        free = torch.cuda.mem_get_info()[0]
        n_own = case.n_docs if case.kind == "candidates" else 0
        addresses = (self.scores.data_ptr(), self.winners.data_ptr())
        self.call = ours.Call(self.device, *self.handles, n_own, "winners=1", *addresses)
        grads = [gradient.data_ptr() for gradient in self.gradients]
        self.step = ours.Step(self.device, self.call, strategy, g.data_ptr(), *grads)
        self.step()
        torch.cuda.synchronize()
        self.device_bytes = max(0, free - torch.cuda.mem_get_info()[0])


def reference(problem, g, winners):
    """The gradients in f32 of winners that tie with the f32 maxima, query by query.

    Equal similarities may differ by their rounding: as many as dim 2^-23 sum |q d| apart, and one
    winner in a million does. Another row in its place would say nothing about the gradients.
    """
    case, dim = problem.case, problem.case.dim
    documents = problem.documents.float()
    grad_queries = torch.zeros(case.n_queries, case.query_len, dim, device="cuda")
    grad_documents = torch.zeros_like(documents)
    if problem.offsets is None:
        starts = torch.arange(problem.n_items, device="cuda") * case.doc_len
        lengths = torch.full((problem.n_items,), case.doc_len, device="cuda")
    else:
        starts, lengths = problem.offsets[:-1].cuda(), problem.lengths.cuda()
    longest = int(lengths.max())
    within = torch.arange(longest, device="cuda")
    winners = (winners.to(torch.int32) & 0xFFFF).view(case.n_queries, case.n_docs, case.query_len)
    for q in range(case.n_queries):
        own = (
            slice(q * case.n_docs, (q + 1) * case.n_docs)
            if case.kind == "candidates"
            else slice(None)
        )
        query = problem.queries[q].float()
        for part in torch.arange(problem.n_items, device="cuda")[own].split(64):
            rows = (starts[part, None] + within).clamp(max=problem.n_rows - 1)
            similarity = torch.einsum("sd,ntd->nst", query, documents[rows])
            similarity.masked_fill_(within >= lengths[part, None, None], -torch.inf)
            column = part - own.start if own.start is not None else part
            winner = winners[q, column].long()
            chosen = rows.gather(1, winner)
            sizes = (documents[chosen].abs() * query.abs()).sum(2)
            behind = similarity.amax(2) - similarity.gather(2, winner[:, :, None])[:, :, 0]
            if bool((behind > dim * 2.0**-23 * sizes).any()):
                raise ValueError(f"winners of query {q} are off")
            factor = g[q, column][:, None, None]
            grad_queries[q] += (documents[chosen] * factor).sum(0)
            grad_documents.index_add_(
                0, chosen.reshape(-1), (query * factor).expand(len(part), -1, -1).reshape(-1, dim)
            )
    return grad_queries, grad_documents


def cosines(found, expected):
    pairs = zip(found, expected)
    return [
        float(
            torch.nn.functional.cosine_similarity(
                a.double().reshape(1, -1), b.double().reshape(1, -1)
            )
        )
        for a, b in pairs
    ]


def peers(problem, g):
    """{name: step or the error of making it}, each leaving its gradients in `.grad`."""
    case, made = problem.case, {}
    queries = problem.queries.detach().requires_grad_()
    packed = problem.documents.detach()
    documents = (
        packed.clone().requires_grad_()
        if case.kind == "ragged"
        else problem.padded.detach().requires_grad_()
    )

    def step(forward, *leaves):
        def run():
            for leaf in leaves:
                leaf.grad = None
            forward().backward(g)

        return run

    def flash(path):
        import flash_maxsim

        if case.kind == "ragged":
            padded, lengths = pad(problem).requires_grad_(), problem.lengths.to("cuda")
            forward = lambda: flash_maxsim.flash_maxsim_batched_train(
                queries, padded, doc_lengths=lengths
            )
            run = step(forward, queries, padded)
        else:
            shared = case.kind != "candidates"
            run = step(
                lambda: flash_maxsim.flash_maxsim_batched_train(
                    queries, documents, shared_docs=shared
                ),
                queries,
                documents,
            )

        def with_path():
            os.environ["FLASH_BWD_PATH"] = path
            run()

        return with_path

    def late_interaction(backward):
        import late_interaction_kernels as lik

        if case.kind == "ragged":
            offsets = problem.offsets.to(torch.int32).cuda()
            starts = (
                torch.arange(case.n_queries + 1, dtype=torch.int32, device="cuda") * case.query_len
            )
            longest = int(problem.lengths.max())
            flat = lambda: lik.maxsim_varlen(
                queries.view(-1, case.dim), documents, starts, offsets, case.query_len, longest
            )
            return step(flat, queries, documents)
        return step(lambda: lik.maxsim(queries, documents, backward=backward), queries, documents)

    makers = {f"flash-maxsim {path}": (flash, path) for path in ("atomic_unified", "invgrid")}
    ragged = case.kind == "ragged"
    modes = ("varlen",) if ragged else ("unified", "lowmem")
    makers |= {f"late-interaction-kernels {mode}": (late_interaction, mode) for mode in modes}
    for name, (make, argument) in makers.items():
        try:
            made[name] = make(argument)
        except Exception as error:
            made[name] = error
    return made


def pad(problem):
    import peers as forward_peers

    return forward_peers.pad(problem)


def run(training, args):
    """The row of a case."""
    case = training.case if args.scale == 1 else training.case.scaled(args.scale)
    problem = data.Problem(case, "cuda")
    generator = torch.Generator(device="cuda").manual_seed(3)
    g = torch.randn(case.n_queries, case.n_docs, device="cuda", generator=generator)
    timer = timing.Cuda(torch)
    own = Ours(problem, g)
    # Kernels are loaded: the memory of a second one is what a step takes.
    own = Ours(problem, g)
    found = {"device_bytes": own.device_bytes, "winner_bytes": own.winners.nbytes}
    alone = training.x is None
    if not alone:
        found["cosines"] = cosines(own.gradients, reference(problem, g, own.winners))
        if not min(found["cosines"]) >= COSINE_MIN:
            raise ValueError(f"gradients are off: cosines {found['cosines']}")
    first = [gradient.clone() for gradient in own.gradients]
    own.step()
    torch.cuda.synchronize()
    found["repeats"] = all(bool(torch.equal(a, b)) for a, b in zip(first, own.gradients))
    del first
    others = {} if args.no_peers or alone else peers(problem, g)
    methods = {"maxsim": own.step, "maxsim forward": own.call, "maxsim backward": own.step.backward}
    methods |= {name: call for name, call in others.items() if not isinstance(call, Exception)}
    # What no step can do without: the documents are read, and their gradient is written.
    reads = {
        f"read x{n}": own.device.read(own.call.stream, own.handles[1], n) for n in ours.READ_GRIDS
    }
    methods |= reads | {"write": own.gradients[1].zero_}
    options = {"rounds_min": 5, "rounds_max": 9} if args.quick else {}
    results = timing.measure(timer, methods, args.seconds, warm=False, **options)
    # Everything goes to one row of a document, and comes from one.
    own.winners.zero_()
    hot = timing.measure(
        timer, {"hot": own.step.backward}, args.seconds / 4, warm=False, **options
    )["hot"]
    for name, error in others.items():
        if isinstance(error, Exception):
            results[name] = {"error": timing.said(error)}
        elif "ms" in results[name]:
            results[name]["device_bytes"] = timer.peak_bytes(error)
    timed = {name: results[name]["ms"] for name in others if "ms" in results[name]}
    best = min(timed, key=timed.get) if timed else None
    ours_ms = results["maxsim"].get("ms")
    read_ms = min((results[name]["ms"] for name in reads if "ms" in results[name]), default=None)
    write_ms = results["write"].get("ms")
    traffic_ms = round(read_ms + write_ms, 5) if read_ms and write_ms else None
    n_sources = case.n_queries * case.n_docs * case.query_len
    gather_bytes = 2 * n_sources * case.dim * 2
    return {
        "case": case.words,
        "name": case.name,
        "n_queries": case.n_queries,
        "n_docs": case.n_docs,
        "query_len": case.query_len,
        "doc_len": case.doc_len,
        "n_doc_tokens": problem.n_rows,
        "dim": case.dim,
        "element": case.element,
        "strategy": "owner",
        "targets": training.targets(),
        "ours": results["maxsim"] | found,
        "forward": results["maxsim forward"],
        "backward": results["maxsim backward"],
        "backward_hot": hot,
        # Two gathers of a row per winner, at the 9 to 10 TB/s that L2 gathers reach.
        "gather_floor_ms": round(gather_bytes / 9.5e9, 5),
        "peers": {name: results[name] for name in others},
        "read_ms": read_ms,
        "write_ms": write_ms,
        "limit_ms": traffic_ms,
        "of_limit": record.ratio(traffic_ms, ours_ms),
        "ours_ms": ours_ms,
        "best_peer": best,
        "best_peer_ms": timed.get(best),
        "x_best_peer": record.ratio(timed.get(best), ours_ms),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="+", metavar="CASE", help="`all`, `list`, or names of cases")
    parser.add_argument(
        "--out", type=pathlib.Path, default=pathlib.Path(os.environ.get("OUT", "out"))
    )
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="measuring time per case (default 3)"
    )
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--no-peers", action="store_true", help="only maxsim")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="share of the documents, to try the script"
    )
    args = parser.parse_args()
    if args.cases == ["list"]:
        for name, training in BY_NAME.items():
            print(f"{name:<22} {training.case.words}")
        return 0
    names = list(BY_NAME) if args.cases == ["all"] else args.cases
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "training.json"
    # Which kernels a row is of: those that its process had loaded by then.
    folder = tempfile.TemporaryDirectory()
    jit_log = pathlib.Path(folder.name) / "jit.log"
    os.environ["MAXSIM_JIT_LOG"] = str(jit_log)
    found = {
        "gpu": torch.cuda.get_device_name(),
        "versions": {"torch": torch.__version__},
        "protocol": PROTOCOL,
    }
    found["date"] = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    found |= record.kernels_sha256() | {"rows": []}
    if path.is_file():
        found["rows"] = record.rows_of(json.loads(path.read_text()), found)
    n_failed = 0
    for name in names:
        try:
            row = run(BY_NAME[name], args)
            row["kernels"] = record.kernels_of(jit_log.read_text(), found)
            figures = [
                row["ours_ms"],
                row["forward"].get("ms"),
                row["backward"].get("ms"),
                row["gather_floor_ms"],
            ]
            print(
                name,
                *figures,
                row["best_peer"],
                row["best_peer_ms"],
                row["x_best_peer"],
                row["targets"]["x"],
                flush=True,
            )
        except Exception as error:
            n_failed += 1
            row = {
                "case": BY_NAME[name].case.words,
                "name": name,
                "ours": {"error": timing.said(error)},
            }
            print(name, "FAILED", timing.said(error), flush=True)
        torch.cuda.empty_cache()
        found["rows"] = record.replaced(found["rows"], [row])
        path.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n")
    return 1 if n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
