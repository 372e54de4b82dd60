"""Device times of the forward and training campaigns' rows from Python, beside those from Rust."""

import copy
import gc
import json
import types

import cases
import data
import ours
import torch
import training

from . import rows, scoring, world
from .calls import n_bytes
from .world import reported

GOAL = rows.Goal("within 3 % of the Rust record", (("x_rust", "<=", 1.03),))
#: Beside, of ragged documents: where the host does not know the offsets, as Rust's does.
ON_DEVICE = "maxsim, offsets on the device"
#: Documents' gradients are compared where a reference fits.
REFERENCE_SCORES = 1 << 24


class Rust:
    """The library's own calls in this process, by its interface for benchmarks."""

    def __init__(self, w):
        import runner

        options = {"device": w.device, "quick": w.tiny, "seconds": w.seconds}
        self.bench = runner.Bench(types.SimpleNamespace(**options))


def committed(w, name):
    """Times of a committed record by the words of their cases, if it is of this card."""
    folder = world.timing.__file__.rpartition("/bench/")[0] or "."
    kind = w.card.split()[1].lower() if w.on_gpu else ""
    try:
        with open(f"{folder}/docs/measured/{kind}/{name}") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return {}
    if found.get("gpu") != w.card:
        return {}
    return {row["case"]: row.get("ours_ms") for row in found["rows"]}


def rust_or_none(w):
    """The library's calls; None where the interface was not built."""
    try:
        return Rust(w)
    except ours.Error as error:
        print(f"without Rust beside: {error}", flush=True)
        return None


def forward(w):
    """Rows of every forward case that Python can ask for: all but those of a kernel by name."""
    rust, record = rust_or_none(w), committed(w, "forward.json")
    for case in cases.CASES:
        if not chosen(w, case.name):
            continue
        problem = None
        for variant in case.variants:
            if variant.row:
                continue
            words = f"device time, {case.words}{variant.words}"
            with reported(words, GOAL) as found:
                if problem is None:
                    problem = w.problem(w.small(case))
                found.append(forward_row(w, rust, words, problem, variant, record))
            yield found
        del problem
        gc.collect()
        if w.on_gpu:
            torch.cuda.empty_cache()


def chosen(w, name):
    """Whether a case was asked for; all are where none was named."""
    return not w.args.cases or any(name.startswith(word) for word in w.args.cases)


def forward_row(w, rust, words, problem, variant, record):
    """A variant from Python beside the same from Rust."""
    element = variant.element or problem.case.element
    dtype = data.DTYPES[element]
    if variant.masked and problem.mask is None:
        problem.draw_mask()
    part = copy.copy(problem)
    if dtype != problem.queries.dtype:
        part.queries, part.documents = (x.to(dtype) for x in (problem.queries, problem.documents))
    options = {"tf32": True} if "tf32" in variant.options else {}
    if "winners" in variant.options:
        options["winners"] = True
    call = scoring.ours(part, variant.masked, **options)
    scores = (lambda: call().scores) if "winners" in options else call
    bound = world.TOLERANCE_TF32 if "tf32" in options else world.TOLERANCE
    sample = problem.sample(world.SAMPLE, dtype)
    error = problem.largest_error(scores(), sample, variant.masked)
    if not error <= bound:
        raise ValueError(f"scores are off by {error:.2e} relative")
    methods, one = {"maxsim": call}, None
    if rust is not None:
        one = rust.bench.variant(problem, variant)
        methods["Rust"] = one.call
    if part.offsets is not None and w.on_gpu:
        methods[ON_DEVICE] = scoring.ours(part, lists=w.device)
    times = w.device_ms(methods)
    if one is not None:
        one.free()
    rate = variant.rate or element
    limit = w.limits.device_ms(n_bytes(part), problem.flop(), rate)
    return beside_rust(words, times, limit, record.get(words.removeprefix("device time, ")))


def beside_rust(words, times, limit, committed_ms):
    """A row of device times from Python and from Rust; `committed_ms`: the record's."""
    middle = world.figures(times)
    rust_ms = middle.get("Rust", committed_ms)
    return rows.row(
        words,
        GOAL,
        middle["maxsim"],
        "ms",
        None,
        limit,
        rust_ms=rust_ms,
        x_rust=rows.ratio(middle["maxsim"], rust_ms),
        beside="the same run" if "Rust" in middle else "the committed record",
        committed_ms=committed_ms,
        **({"offsets_on_the_device_ms": middle[ON_DEVICE]} if ON_DEVICE in middle else {}),
        quartiles=world.spreads(times),
        n=len(times["maxsim"]),
    )


def train(w):
    """Rows of every training case: forward and `scores.backward(g)`."""
    rust, record = rust_or_none(w), committed(w, "training.json")
    for each in training.TRAININGS:
        case = each.case
        if not chosen(w, case.name):
            continue
        words = f"device time, training, {case.words}"
        with reported(words, GOAL) as found:
            found.append(train_row(w, rust, words, w.small(case), record.get(case.words)))
        gc.collect()
        if w.on_gpu:
            torch.cuda.empty_cache()
        yield found


def train_row(w, rust, words, case, committed_ms):
    """A step from Python beside the same from Rust; gradients are the same to the bit, too."""
    problem = w.problem(case)
    torch.manual_seed(3)
    g = torch.randn(case.n_queries, case.n_docs, device=w.device)
    step = scoring.Step(scoring.score(problem), *scoring.leaves(problem), g)
    step()
    methods, more = {"maxsim": step}, {}
    if rust is not None and w.on_gpu:
        one = training.Ours(problem, g)
        if problem.n_scores() * case.query_len <= REFERENCE_SCORES:
            found = training.cosines(one.gradients, training.reference(problem, g, one.winners))
            if not min(found) >= training.COSINE_MIN:
                raise ValueError(f"gradients are off: cosines {found}")
            more["cosines"] = found
        pairs = zip((step.q.grad, step.d.grad), one.gradients)
        more["same_bits"] = all(torch.equal(a.reshape(-1), b.reshape(-1)) for a, b in pairs)
        if not more["same_bits"]:
            near = zip((step.q.grad, step.d.grad), one.gradients)
            found = [world.cosine(a, b) for a, b in near]
            if not min(found) >= training.COSINE_MIN:
                raise ValueError(f"gradients are not Rust's: cosines {found}")
        methods["Rust"] = one.step
    elif problem.offsets is None:
        expected = scoring.reference_gradients(*scoring.leaves(problem), g)
        found = [world.cosine(a, b) for a, b in zip((step.q.grad, step.d.grad), expected)]
        if not min(found) >= training.COSINE_MIN:
            raise ValueError(f"gradients are off: cosines {found}")
    if problem.offsets is not None and w.on_gpu:
        other = scoring.score(problem, lists=w.device)
        methods[ON_DEVICE] = scoring.Step(other, *scoring.leaves(problem), g)
    times = w.device_ms(methods)
    # Documents are read, and their gradients written.
    traffic = 2 * problem.documents.nbytes
    limit = w.limits.device_ms(traffic, problem.flop(), "f16")
    return beside_rust(words, times, limit, committed_ms) | rows.rounded(more)
