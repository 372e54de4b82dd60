"""Scores with weights of query tokens, and their gradients, beside those of plain calls.

A mean is a set of weights: its calls are these.
"""

import cases
import data
import ours
import runner
import torch
from python import world

from . import goals

#: Queries, tokens of each, documents, tokens of each: kernels of every schedule for f16.
SCORED = [
    (1, 32, 1000, 300),
    (1, 32, 10_000, 300),
    (1, 128, 1000, 1024),
    (1, 1024, 2000, 1024),
    (32, 32, 1024, 180),
    (512, 32, 1024, 300),
]
#: Training steps.
TRAINED = [(64, 1024, 64, 1024), (256, 32, 256, 300)]


class Plain(runner.Prepared):
    """Our call of a problem, and its gradients."""

    def tokens(self, problem):
        return [self.queries(problem), self.documents(problem)]

    def queries(self, problem):
        case = problem.case
        shape = (case.dim, case.n_queries, case.query_len)
        return self.device.tokens(case.element, problem.queries.data_ptr(), *shape)

    def documents(self, problem):
        case = problem.case
        shape = (case.dim, problem.n_items, case.doc_len)
        return self.device.tokens(case.element, problem.documents.data_ptr(), *shape)

    def prepare_gradients(self, problem, g):
        """Makes the gradients ready that `step.backward` enqueues."""
        self.grads = [torch.zeros_like(x) for x in (problem.queries, problem.documents)]
        self.grads += self.of_weights(problem)
        addresses = [grad.data_ptr() for grad in self.grads]
        self.step = ours.Step(self.device, self.call, "owner", g.data_ptr(), *addresses)
        return self.step

    def of_weights(self, _):
        return []


class Weighted(Plain):
    """The same with weights of the query tokens, some of them 0 or negative."""

    def queries(self, problem):
        case = problem.case
        self.weights = weights_of(problem)
        shape = (case.dim, case.n_queries, case.query_len)
        places = (problem.queries.data_ptr(), *shape, self.weights.data_ptr())
        return self.device.weighted(case.element, *places)

    def of_weights(self, problem):
        return [torch.zeros_like(weights_of(problem))]


def weights_of(problem):
    """Weights `[n_queries, query_len]`."""
    case = problem.case
    n = case.n_queries * case.query_len
    weights = torch.arange(n, device=problem.device) % 7 / 3.0 - 0.5
    return weights.float().view(case.n_queries, case.query_len)


def maxima(problem, queries, documents):
    """The largest similarity `[n_queries, query_len, n_docs]` of each token, in float64."""
    case = problem.case
    rows = problem.documents.view(-1, case.doc_len, case.dim)[documents].double()
    found = [
        torch.einsum("sd,ntd->snt", problem.queries[q].double(), rows).amax(-1) for q in queries
    ]
    return torch.stack(found)


def check_scores(problem, scores):
    """Compares some documents' scores with the weighted sums of float64."""
    case = problem.case
    documents = torch.linspace(0, case.n_docs - 1, min(case.n_docs, world.SAMPLE)).long()
    queries = range(min(case.n_queries, world.SAMPLE))
    products = maxima(problem, queries, documents) * weights_of(problem)[: len(queries), :, None]
    found = scores.view(case.n_queries, case.n_docs)[: len(queries), documents].double()
    error = ((found - products.sum(1)).abs() / products.abs().sum(1)).max().item()
    if not error <= world.TOLERANCE:
        raise ValueError(f"scores are off by {error:.2e} of their terms' magnitudes")


def check_gradient(problem, g, found):
    """Compares the gradient of some queries' weights, sums of g times maxima, with float64's."""
    queries = range(min(problem.case.n_queries, 4))
    of_all = maxima(problem, queries, torch.arange(problem.case.n_docs))
    expected = torch.einsum("qn,qsn->qs", g[: len(queries)].double(), of_all)
    cosine = world.cosine(found[: len(queries)], expected)
    if not cosine >= world.COSINE:
        raise ValueError(f"the gradient of weights has cosine {cosine:.7f} with the reference's")


def problem_of(w, shape):
    """A problem of this shape, or of the smallest that is like it."""
    n_queries, query_len, n_docs, doc_len = shape
    case = cases.Case("weights", "", n_queries, query_len, n_docs, doc_len)
    return data.Problem(w.small(case), w.device)


def scores(w, bench, shape):
    """Times of a call with weights, "weights", and of the plain one, "plain"."""
    problem = problem_of(w, shape)
    plain, weighted = Plain(bench, problem), Weighted(bench, problem)
    check_scores(problem, weighted.run())
    times = w.device_ms({"plain": plain.call, "weights": weighted.call})
    plain.free()
    weighted.free()
    return times


def gradients(w, bench, shape):
    """Times of gradients with weights and their gradient, and of the plain ones."""
    problem = problem_of(w, shape)
    case = problem.case
    g = torch.rand(case.n_queries, case.n_docs, device=w.device)
    methods, both = {}, {"plain": Plain, "weights": Weighted}
    for name, kind in both.items():
        both[name] = kind(bench, problem, "winners=1")
        methods[name] = both[name].prepare_gradients(problem, g).backward
        methods[name]()
    w.timer.synchronize()
    check_gradient(problem, g, both["weights"].grads[2])
    times = w.device_ms(methods)
    for one in both.values():
        one.step.free()
        one.free()
    return times


def row_of_shapes(w, case, unit, parts, methods):
    """The row of a case: the largest ratios of all shapes, of scores and of gradients.

    `parts` has a function that measures for each of the two; `methods` the name of what is
    compared in its times, and of what it is compared with.
    """
    goal = goals.GOALS[case](w.card)
    with world.reported(case, goal) as found:
        bench = runner.bench_of(w)
        ratios, shapes = {"scores": [], "gradients": []}, {}
        all_shapes = {"scores": SCORED}
        # The interface has gradients on a GPU alone.
        all_shapes |= {"gradients": TRAINED} if w.on_gpu else {}
        ours, base = methods
        for name, of in all_shapes.items():
            for shape in of:
                times = parts[name](w, bench, shape)
                middle = world.figures(times)
                words = f"{name}, {shape[0]} of {shape[1]} × {shape[2]} of {shape[3]}"
                shapes[words] = {"ms": middle, "quartiles": world.spreads(times)}
                ratios[name].append(middle[ours] / middle[base])
                if w.on_gpu:
                    torch.cuda.empty_cache()
        most = {name: max(values, default=None) for name, values in ratios.items()}
        found.append(
            world.rows.row(
                case, goal, most["scores"], unit, x_gradients=most["gradients"], shapes=shapes
            )
        )
    yield found


def weights(w):
    """The row of weights."""
    parts = {"scores": scores, "gradients": gradients}
    yield from row_of_shapes(w, goals.WEIGHTS, "× the plain call", parts, ("weights", "plain"))
