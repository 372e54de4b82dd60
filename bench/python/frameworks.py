"""Steps of frameworks' own losses: scoring, loss and backward to the embeddings, by backend.

Their floor is the same step with scores and gradients that cost nothing.
"""

import contextlib
import dataclasses
import os
import statistics
import typing

import timing
import torch

from . import packages, rows, world
from .world import must, reported

GOAL = rows.Goal(
    "≥ 1.8 × the best backend they have, never more memory",
    (("x_best_peer", ">=", 1.8), ("peak_mb", "<=", "least_peer_peak_mb")),
)
QUERY_LEN, DOC_LEN, DIM, VOCABULARY = 32, 300, 128, 4000
#: Winners of rounded tokens differ from those of float32 here and there.
COSINE = 0.98
CHECKED = 8


@dataclasses.dataclass
class Method:
    """A backend of a framework: how it is chosen, and the step that it is chosen for."""

    select: typing.Callable
    step: typing.Callable

    def __call__(self):
        self.select()
        return self.step()

    def deselect(self):
        """Nothing but what the next selection does."""


class Embedded(torch.nn.Module):
    """A model whose embeddings are given: leaves, one tensor per column of a batch."""

    skiplist, do_query_expansion = (), False

    def forward(self, features, **_):
        tokens = features["embeddings"]
        return {"token_embeddings": tokens, "attention_mask": features["attention_mask"]}


class Encoder(torch.nn.Module):
    """A BERT of 4 layers of 256 that has learnt nothing, and a projection to tokens."""

    skiplist, do_query_expansion = (), False

    def __init__(self):
        super().__init__()
        from transformers import BertConfig, BertModel

        config = BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=256,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=1024,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        self.bert = BertModel(config)
        self.projection = torch.nn.Linear(256, DIM, bias=False)

    def forward(self, features, **_):
        mask = features["attention_mask"]
        hidden = self.bert(input_ids=features["input_ids"], attention_mask=mask)
        tokens = self.projection(hidden.last_hidden_state)
        tokens = torch.nn.functional.normalize(tokens, dim=-1)
        return {"token_embeddings": tokens, "attention_mask": mask}


def column(w, n, length, dtype, generator):
    """A column of a batch: ids, a mask of lengths, and normalised embeddings as a leaf."""
    ids = torch.randint(2, VOCABULARY, (n, length), generator=generator)
    lengths = torch.randint(length // 2, length + 1, (n, 1), generator=generator)
    mask = (torch.arange(length) < lengths).long()
    tokens = torch.randn(n, length, w.size(DIM, 16), generator=generator)
    tokens = torch.nn.functional.normalize(tokens, dim=-1).to(w.device, dtype)
    return {
        "input_ids": ids.to(w.device),
        "attention_mask": mask.to(w.device),
        "embeddings": tokens.requires_grad_(),
    }


def batch(w, n, n_documents, dtype):
    """Queries, and as many columns of documents as a query has."""
    generator = torch.Generator().manual_seed(5)
    lengths = [w.size(QUERY_LEN, 6)] + n_documents * [w.size(DOC_LEN, 12)]
    return [column(w, n, length, dtype, generator) for length in lengths]


def autocast(w, dtype):
    """Mixed precision as the frameworks' trainers have it; none for float32."""
    if dtype == torch.float32:
        return contextlib.nullcontext()
    return torch.autocast(w.device, dtype)


def step_of(w, loss, columns, dtype, leaves):
    """A step on columns: the loss, and its gradients in the leaves."""

    def step():
        for leaf in leaves:
            leaf.grad = None
        with autocast(w, dtype):
            value = loss(columns)
        value.backward()
        return value.detach()

    return step


def embeddings_of(columns):
    """The leaves of a batch."""
    return [features["embeddings"] for features in columns]


def chooser(variable, backend, integration, **options):
    """Chooses a framework's backend by its variable, or this package by its integration."""

    def select():
        if backend == "maxsim":
            os.environ[variable] = "auto"
            integration.enable(check_version=False, **options)
        else:
            integration.disable()
            os.environ[variable] = backend

    return select


class PyLate:
    """Its contrastive loss; masked tokens have similarity 0 in ours as in its torch code."""

    variable, backends = "PYLATE_SCORES_BACKEND", ("torch", "flash", "lik")

    def __init__(self, w):
        self.w = w
        self.losses = packages.losses_of_pylate()
        from maxsim.integrations import pylate

        self.integration = pylate

    def step(self, n, n_documents, dtype, model=None):
        """A step of a batch of n queries, and its leaves."""
        columns = batch(self.w, n, n_documents, dtype)
        own = model or Embedded()
        leaves = list(own.parameters()) if model else embeddings_of(columns)
        return step_of(self.w, self.losses.Contrastive(own), columns, dtype, leaves), leaves

    def selections(self):
        found = {
            name: chooser(self.variable, name, self.integration)
            for name in ("maxsim", *self.backends)
        }
        found["maxsim, masked tokens skipped"] = chooser(
            self.variable, "maxsim", self.integration, masked="skip"
        )
        return found


class Colpali:
    """Its in-batch loss of pages, whose queries are as long as they."""

    variable, backends = "COLPALI_SCORES_BACKEND", ("torch", "lik")
    tokens = 1024

    def __init__(self, w):
        self.w = w
        self.losses = packages.losses_of_colpali()
        from maxsim.integrations import colpali

        self.integration = colpali

    def step(self, n, _, dtype, model=None):
        """A step of n queries and pages, and its leaves."""
        generator = torch.Generator().manual_seed(5)
        length = self.w.size(self.tokens, 20)
        columns = [column(self.w, n, length, dtype, generator) for _ in range(2)]
        loss = self.losses.ColbertLoss().to(self.w.device)
        leaves = embeddings_of(columns)
        step = step_of(self.w, lambda _: loss(*leaves), columns, dtype, leaves)
        return step, leaves

    def selections(self):
        return {
            name: chooser(self.variable, name, self.integration)
            for name in ("maxsim", *self.backends)
        }


class SentenceTransformers:
    """Its in-batch loss of multi-vector encoders, which has one backend, its own code."""

    backends = ("torch",)

    def __init__(self, w):
        self.w = w
        from sentence_transformers.multi_vector_encoder import losses

        self.losses = losses
        from maxsim.integrations import sentence_transformers

        self.integration = sentence_transformers

    def step(self, n, n_documents, dtype, model=None):
        """A step of a batch of n queries, and its leaves."""
        columns = batch(self.w, n, n_documents, dtype)
        own = model or Embedded()
        leaves = list(own.parameters()) if model else embeddings_of(columns)
        loss = self.losses.MultiVectorMultipleNegativesRankingLoss(own)
        return step_of(self.w, loss, columns, dtype, leaves), leaves

    def selections(self):
        return {
            "maxsim": lambda: self.integration.enable(check_version=False),
            "torch": self.integration.disable,
        }


def right(framework, n_documents, dtype):
    """Why a backend is wrong in a small batch: against float32 in the framework's own code."""
    n = framework.w.size(CHECKED)
    select = framework.selections()
    step, leaves = framework.step(n, n_documents, torch.float32)
    with torch.no_grad():
        rounded, from_rounded = framework.step(n, n_documents, dtype)
        for leaf, of in zip(leaves, from_rounded):
            leaf.copy_(of.float())
    select["torch"]()
    expected_loss = float(step())
    expected = [leaf.grad for leaf in leaves]

    def check(name, _):
        select[name]()
        loss = float(rounded())
        if not abs(loss - expected_loss) <= 0.05 * max(1.0, abs(expected_loss)):
            raise ValueError(f"the loss is {loss}, not {expected_loss}")
        found = [world.cosine(a.grad, b) for a, b in zip(from_rounded, expected)]
        if not min(found) >= COSINE:
            raise ValueError(f"gradients are off: cosines {found}")

    return check


class Nothing(torch.autograd.Function):
    """Scores and gradients that cost nothing: what they hold does not matter."""

    @staticmethod
    def forward(ctx, q, d, scores):
        ctx.save_for_backward(q, d)
        return scores.detach()

    @staticmethod
    def backward(ctx, grad):
        q, d = ctx.saved_tensors
        return torch.empty_like(q), torch.empty_like(d), None


class Alone:
    """A framework's step alone: its loss, with scores that cost nothing in place of ours."""

    def __init__(self, framework, step):
        from maxsim import scoring

        self.scoring, self.own, self.step, self.held = scoring, scoring.maxsim, step, {}
        names = framework.selections()
        self.enable = names.get("maxsim, masked tokens skipped", names["maxsim"])

    def scores(self, q, d, **_):
        shape = q.shape[0], d.shape[0]
        if shape not in self.held:
            self.held[shape] = torch.rand(shape, device=q.device)
        return Nothing.apply(q, d, self.held[shape])

    def select(self):
        self.enable()
        self.scoring.maxsim = self.scores

    def deselect(self):
        self.scoring.maxsim = self.own


def measured(w, framework, case, goal, n, n_documents, dtype, model=None):
    """The row of a step by every backend."""
    step, _ = framework.step(n, n_documents, dtype, model)
    methods = {name: Method(select, step) for name, select in framework.selections().items()}
    check = None if model else right(framework, n_documents, dtype)
    good, bad = w.working(methods, check)
    must(good, bad)
    peaks = {}
    for name, method in good.items():
        method.select()
        peaks[name] = w.timer.peak_requested_bytes(method.step) / 1e6
    alone = {} if model else {"alone": Alone(framework, step)}
    times = w.turns(good | alone, lambda method: device_ms(w, method), most=60, least=5)
    limit = world.figures({"alone": times.pop("alone")})["alone"] if alone else None
    whole = w.turns(good, lambda method: whole_ms(w, method), w.seconds / 2, most=60, least=5)
    framework.integration.disable()
    middle = world.figures(whole)
    others = [name for name in good if not name.startswith("maxsim")]
    skipped = "maxsim, masked tokens skipped"
    extra = {}
    if skipped in times:
        extra["masked_tokens_skipped"] = {
            "ms": statistics.median(times.pop(skipped)),
            "peak_mb": peaks[skipped],
        }
    bad.pop(skipped, None)
    best = min((middle[name] for name in others), default=None)
    return world.compared(
        case,
        goal,
        times,
        "ms",
        bad,
        limit,
        peak_mb=peaks["maxsim"],
        least_peer_peak_mb=min((peaks[name] for name in others), default=None),
        peers_peak_mb={name: peaks[name] for name in others},
        whole_step_ms=middle,
        x_whole_step=rows.ratio(best, middle["maxsim"]),
        shape=f"{n} × {n_documents}, {w.device}, {str(dtype)[6:]}",
        **extra,
    )


def device_ms(w, method):
    """Device time of a step whose backend is chosen first."""
    method.select()
    sleep_us = max(timing.SLEEP_US_MIN, 2 * w.timer.enqueue_us(method.step, 1))
    try:
        return w.timer.device_ms(method.step, sleep_us, True)
    finally:
        method.deselect()


def whole_ms(w, method):
    """Host time of a step until its gradients are there."""
    method.select()
    return w.timer.call_ms(method.step)


STEPS = (
    (PyLate, "PyLate contrastive 64 × 1", 64, 1),
    (PyLate, "PyLate contrastive 128 × 2", 128, 2),
    (PyLate, "PyLate contrastive 256 × 3", 256, 3),
    (Colpali, "colpali loss B = 32 of 1024²", 32, 1),
    (Colpali, "colpali loss B = 64 of 1024²", 64, 1),
    (Colpali, "colpali loss B = 128 of 1024²", 128, 1),
    (SentenceTransformers, "sentence-transformers in-batch 128", 128, 1),
)
#: Beside, without goals: without mixed precision, and with an encoder.
BESIDE = (
    (PyLate, "PyLate contrastive 128 × 2, float32", 128, 2, torch.float32, False),
    (PyLate, "PyLate contrastive 128 × 2, step with a small encoder", 128, 2, None, True),
    (
        SentenceTransformers,
        "sentence-transformers in-batch 128, step with a small encoder",
        128,
        1,
        None,
        True,
    ),
)


def framework_rows(w, of):
    """Rows of the frameworks among `of`."""
    for kind, case, n, n_documents in STEPS:
        if kind not in of:
            continue
        with reported(case, GOAL) as found:
            n = w.size(n)
            found.append(measured(w, kind(w), case, GOAL, n, n_documents, torch.bfloat16))
        yield found
    for kind, case, n, n_documents, dtype, with_encoder in BESIDE:
        if kind not in of:
            continue
        with reported(case, None) as found:
            model = Encoder().to(w.device) if with_encoder else None
            dtype, n = dtype or torch.bfloat16, w.size(n)
            found.append(measured(w, kind(w), case, None, n, n_documents, dtype, model))
        yield found


def pylate(w):
    """Rows of PyLate."""
    yield from framework_rows(w, (PyLate,))


def colpali(w):
    """Rows of colpali-engine."""
    yield from framework_rows(w, (Colpali,))


def sentence_transformers(w):
    """Rows of sentence-transformers."""
    yield from framework_rows(w, (SentenceTransformers,))
