"""Training steps beside plain PyTorch's, whole and recomputed in blocks (tables 3, 10, 11 and 24 of
the Flash-MaxSim paper)."""

import cases
import data
import peers
import timing
import torch
import training
from python import world
from torch.utils.checkpoint import checkpoint

from . import methods

#: In-batch shapes: queries and documents, tokens of each.
SHAPES = (
    (128, 32, 180),
    (512, 32, 180),
    (1024, 32, 180),
    (16, 1024, 1024),
    (64, 1024, 1024),
    (128, 1024, 1024),
)
#: Documents whose similarities are kept at a time where they are computed again.
BLOCKS = (4, 16, 64)
STRATEGIES = ("owner", "atomic", "recompute")


def steps(w):
    """A row for each shape."""
    for n, query_len, doc_len in SHAPES if w.on_gpu else ():
        words = f"in-batch, {n} of {query_len} × {doc_len}"
        with world.reported(words, None) as found:
            found.append(step(w, words, cases.Case("steps", "", n, query_len, n, doc_len)))
        yield found
        torch.cuda.empty_cache()


def step(w, words, case):
    """The row of a shape."""
    problem = data.Problem(w.small(case), w.device)
    case = problem.case
    generator = torch.Generator(device="cuda").manual_seed(3)
    g = torch.randn(case.n_queries, case.n_docs, device="cuda", generator=generator)
    training.Ours(problem, g)  # Loads kernels, so that their code is not counted.
    own, refused = {}, {}
    for strategy in STRATEGIES:
        try:
            own[strategy] = training.Ours(problem, g, strategy)
        except Exception as error:
            refused[strategy] = str(error)
    wanted = training.reference(problem, g, own["owner"].winners)
    for one in own.values():
        must_agree(training.cosines(one.gradients, wanted), training.COSINE_MIN)
    named = {f"maxsim, {name}" if name != "owner" else "maxsim": one for name, one in own.items()}
    calls = {name: one.step for name, one in named.items()}
    leaves = [x.detach().clone().requires_grad_() for x in (problem.queries, problem.padded)]
    others = pytorch(leaves, g) | training.peers(problem, g)

    def check(name, _):
        if name in others and name.startswith("PyTorch"):
            found = [leaf.grad for leaf in leaves]
            must_agree(training.cosines(found, wanted), world.COSINE_PEERS)

    good, bad = w.working(calls | others, check)
    world.must(good, bad)
    best = keep_best_block(w, good)
    del wanted
    torch.cuda.empty_cache()
    times = w.device_ms(good | {"maxsim, forward": own["owner"].call})
    memory = {name: round(one.device_bytes / 1e6, 2) for name, one in named.items()}
    for name, call in good.items():
        if name not in calls:
            memory[name] = round(w.timer.peak_bytes(call) / 1e6, 2)
    bad |= {f"maxsim, {name}": why for name, why in refused.items()}
    bad = methods.plainly(bad)
    ours = {name for name in [*times, *bad] if name.startswith("maxsim, ")}
    middle = world.figures(times)
    more = {"ours_ms": {name: middle[name] for name in ours if name in middle}}
    found = world.compared(
        words,
        None,
        {name: time for name, time in times.items() if name not in ours},
        "ms",
        {name: why for name, why in bad.items() if name not in ours},
        megabytes=memory,
        block=best,
        **more,
    )
    for one in own.values():
        one.step.free()
        one.call.free()
    return found


def must_agree(found, least):
    """Cosines of gradients must be at least so large."""
    if not min(found) >= least:
        raise ValueError(f"gradients are off: cosines {found}")


def pytorch(leaves, g):
    """Steps as PyTorch users write them: all similarities kept, or computed again in blocks."""
    queries, documents = leaves

    def run(forward):
        for leaf in leaves:
            leaf.grad = None
        forward().backward(g)

    def blocks(n):
        parts = [
            checkpoint(peers.eager, queries, part, use_reentrant=False)
            for part in documents.split(n)
        ]
        return torch.cat(parts, dim=1)

    found = {"PyTorch, eager": lambda: run(lambda: peers.eager(queries, documents))}
    for n in BLOCKS:
        found[recomputed(n)] = lambda n=n: run(lambda: blocks(n))
    return found


def recomputed(n):
    return f"PyTorch, recomputed in blocks of {n}"


def keep_best_block(w, good):
    """Leaves the fastest of the steps in blocks, under a name without its number; the number."""
    times = {}
    for n in BLOCKS:
        call = good.get(recomputed(n))
        if call is not None:
            times[n] = min(w.timer.device_ms(call, timing.SLEEP_US_MIN, True) for _ in range(2))
    best = min(times, key=times.get) if times else None
    for n in BLOCKS:
        call = good.pop(recomputed(n), None)
        if n == best:
            good["PyTorch, recomputed in blocks"] = call
    return best
