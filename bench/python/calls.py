"""Whole calls from Python, calls that are enqueued only, and both inside torch.compile."""

import os

import cases
import torch

from . import limits, packages, rows, scoring, world

WHOLE = (
    ("1k-32-300", "1 × 32 × 1000 × 300"),
    ("multi-32-180", "32 × 32 × 1024 × 180"),
    ("candidates-10", "candidates 32 × 10 × 180"),
)
GOAL_WHOLE = rows.Goal("≤ 0.75 × the faster peer's", (("of_best_peer", "<=", 0.75),))
GOAL_FORWARD = rows.Goal("≤ 12 µs", (("ours", "<=", 12.0),))
GOAL_STEP = rows.Goal("≤ 30 µs", (("ours", "<=", 30.0),))
GOAL_COMPILED = rows.Goal(
    "≤ the peers', no graph break", (("x_best_peer", ">=", 1.0), ("graph_breaks", "<=", 0))
)
#: Small enough that the device keeps up with any host.
STEP = cases.Case("step", "8 × 32 × 8 × 180", 8, 32, 8, 180)


def n_bytes(problem):
    """Bytes of the tokens that a call reads."""
    return problem.queries.nbytes + problem.documents.nbytes


def working(w, name):
    """A case's problem, the calls of it that give right scores, and why others do not."""
    problem = w.problem(w.case(name))
    sample = problem.sample(world.SAMPLE, torch.float16)
    check = world.right_scores(problem, sample, {"maxsim": world.TOLERANCE})
    good, bad = w.working({"maxsim": scoring.ours(problem)} | scoring.others(problem), check)
    world.must(good, bad)
    return problem, good, bad


def whole(w):
    """Rows of whole calls, until the result is there."""
    for name, words in WHOLE:
        case = f"whole call, {words}"
        with world.reported(case, GOAL_WHOLE) as found:
            problem, good, bad = working(w, name)
            times = w.whole_ms(good)
            limit = w.limits.device_ms(n_bytes(problem), problem.flop(), "f16")
            limit = None if limit is None else limit + w.limits.whole_ms
            middle = world.figures(times)
            best = min((middle[k] for k in middle if k != "maxsim"), default=None)
            of_best = rows.ratio(middle["maxsim"], best)
            warm = world.figures(w.turns(good, warm_ms(w), w.seconds / 4))
            found.append(
                world.compared(
                    case, GOAL_WHOLE, times, "ms", bad, limit, of_best_peer=of_best, warm_ms=warm
                )
            )
        yield found


def warm_ms(w):
    """Times a whole call right after the same call."""

    def once(call):
        call()
        w.timer.synchronize()
        start = world.time.perf_counter()
        call()
        w.timer.synchronize()
        return (world.time.perf_counter() - start) * 1e3

    return once


def problem_of_step(w):
    """A small in-batch problem, and fixed gradients of its scores."""
    problem = w.problem(w.small(STEP))
    torch.manual_seed(3)
    g = torch.randn(problem.case.n_queries, problem.case.n_docs, device=w.device)
    return problem, g


def steps(problem, g):
    """Forward and backward by every method."""
    own = scoring.Step(scoring.score(problem), *scoring.leaves(problem), g)
    return {"maxsim": own} | scoring.peers_steps(problem, g)


def right_gradients(problem, g, steps):
    """A check of the gradients that a step leaves."""
    expected = scoring.reference_gradients(*scoring.leaves(problem), g)

    def check(name, _):
        step = steps[name]
        least = world.COSINE if name == "maxsim" else world.COSINE_PEERS
        found = [world.cosine(a, b) for a, b in zip((step.q.grad, step.d.grad), expected)]
        if not min(found) >= least:
            raise ValueError(f"gradients are off: cosines {found}")

    return check


def enqueue(w):
    """Rows of host times of calls that are not waited for."""
    for name, words in WHOLE:
        case = f"enqueue of a call from Python, forward, {words}"
        with world.reported(case, GOAL_FORWARD) as found:
            problem, good, bad = working(w, name)
            shape = problem.case.n_queries, problem.case.n_docs
            times, limit = beside(w, good, lambda: limits.Call(torch, *shape))
            found.append(world.compared(case, GOAL_FORWARD, times, "µs", bad, limit))
        yield found
    case = f"enqueue of a call from Python, forward + backward, {STEP.words}"
    with world.reported(case, GOAL_STEP) as found:
        problem, g = problem_of_step(w)
        methods = steps(problem, g)
        good, bad = w.working(methods, right_gradients(problem, g, methods))
        world.must(good, bad)
        times, limit = beside(w, good, lambda: limits.Step(torch, *scoring.leaves(problem), g))
        found.append(world.compared(case, GOAL_STEP, times, "µs", bad, limit))
    yield found


def beside(w, good, floor):
    """Host times of calls in turns with their floor's, and the floor's median."""
    if not w.on_gpu:
        return w.enqueue_us(good), None
    times = w.enqueue_us(good | {"floor": floor()})
    return times, world.figures({"floor": times.pop("floor")})["floor"]


class Compiled:
    """Functions compiled by torch, with how often their graphs were broken."""

    def __init__(self, w):
        # Inductor needs a compiler of C++ on a CPU; there the scripts are only tried.
        self.backend = "inductor" if w.on_gpu else "aot_eager"
        self.breaks = {}

    def make(self, name, function):
        """The function compiled without a break, or else with as many as it takes."""
        import torch._dynamo.utils

        counters = torch._dynamo.utils.counters
        whole = self.compiled(function, fullgraph=True)
        broken = None

        def call(*tensors):
            nonlocal broken
            if broken is None:
                try:
                    result = whole(*tensors)
                    self.breaks[name] = 0
                    return result
                except torch._dynamo.exc.Unsupported:
                    torch._dynamo.reset()
                    counters.clear()
                    broken = self.compiled(function, fullgraph=False)
                    result = broken(*tensors)
                    self.breaks[name] = sum(counters["graph_break"].values())
                    return result
            return broken(*tensors)

        # What is timed is what a user would call: no function of this one in between.
        return call, lambda: broken or whole

    def compiled(self, function, fullgraph):
        return torch.compile(function, backend=self.backend, fullgraph=fullgraph, dynamic=False)


def functions(problem, training):
    """{name: function of queries and documents}, of this package and of the peers."""
    found = {"maxsim": scoring.score(problem)}
    try:
        flash = packages.original("flash_maxsim")
        if training:
            found["flash-maxsim"] = lambda q, d: flash.flash_maxsim_batched_train(q, d)
        else:
            found["flash-maxsim"] = lambda q, d: flash.flash_maxsim_batched(q, d, shared_docs=True)
    except ImportError as error:
        found["flash-maxsim"] = error
    try:
        lik = packages.original("late_interaction_kernels")
        found["late-interaction-kernels"] = lambda q, d: lik.maxsim(q, d)
    except ImportError as error:
        found["late-interaction-kernels"] = error
    return found


def compiled(w):
    """Rows of the same inside torch.compile."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", "/tmp/maxsim-inductor")
    for training, words in ((False, "forward"), (True, "forward + backward")):
        case = f"the same inside torch.compile, {words}, {STEP.words}"
        with world.reported(case, GOAL_COMPILED) as found:
            problem, g = problem_of_step(w)
            found.append(compiled_row(w, case, problem, g, training))
        yield found


def compiled_row(w, case, problem, g, training):
    """The row of a call, or of a step, whose scores are compiled."""
    made, final, methods = Compiled(w), {}, {}
    for name, function in functions(problem, training).items():
        if isinstance(function, Exception):
            methods[name] = function
            continue
        call, final[name] = made.make(name, function)
        q, d = scoring.leaves(problem)
        if training:
            methods[name] = scoring.Step(call, q, d, g)
        else:
            methods[name] = no_grad(call, q.detach(), d.detach())
    if training:
        check = right_gradients(problem, g, methods)
    else:
        sample = problem.sample(world.SAMPLE, torch.float16)
        check = world.right_scores(problem, sample, {"maxsim": world.TOLERANCE})
    good, bad = w.working(methods, check)
    world.must(good, bad)
    for name, method in good.items():
        if training:
            method.score = final[name]()
        else:
            good[name] = no_grad(final[name](), problem.queries, problem.padded)
    times = w.enqueue_us(good)
    whole = world.figures(w.whole_ms(good, w.seconds / 2))
    breaks = made.breaks.pop("maxsim")
    limit = (2 if training else 1) * w.limits.launch_us if w.limits.launch_us else None
    return world.compared(
        case,
        GOAL_COMPILED,
        times,
        "µs",
        bad,
        limit,
        graph_breaks=breaks,
        peers_graph_breaks=made.breaks,
        whole_ms=whole,
    )


def no_grad(function, q, d):
    """A call without gradients."""
    return lambda: function(q, d)
