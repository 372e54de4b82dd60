"""Searches of documents that are on the device: ours by the library's interface, and the peers'."""

import cases
import data
import ours
import peers
import torch
from python import packages, world
from runner import Prepared

MAKERS = {"flash_maxsim": peers.flash, "late_interaction_kernels": peers.late_interaction}
FLASH, RETRIEVE = "flash-maxsim + torch.topk", "late-interaction-kernels retrieve"


def shaped(w, n_queries, query_len, n_docs, doc_len):
    """A case, or the smallest that is like it where the scripts are only tried."""
    shape = w.size(n_queries, 3), w.size(query_len, 8), w.size(n_docs, 400), w.size(doc_len, 12)
    return cases.Case("search", "", *shape, dim=w.size(128, 32))


class Spread(data.Problem):
    """A problem of tokens that are spread as `spread` draws them."""

    def __init__(self, case, device, spread):
        self.spread = spread
        super().__init__(case, device)

    def draw_documents(self, dtype):
        case = self.case
        documents = self.spread.documents(case.n_docs, case.doc_len, dtype)
        self.queries = self.spread.queries(documents, case.n_queries, case.query_len)
        self.documents = documents.view(-1, case.dim)


class Whole(Prepared):
    """Our scores of a case."""

    def tokens(self, problem):
        case, tokens = problem.case, self.device.tokens
        queries = (problem.queries.data_ptr(), case.dim, case.n_queries, case.query_len)
        documents = (problem.documents.data_ptr(), case.dim, problem.n_items, case.doc_len)
        return [tokens(case.element, *queries), tokens(case.element, *documents)]


class Found:
    """Room on the host for the best of each query."""

    def __init__(self, n_queries, k):
        self.ids = torch.full((n_queries, k), -2, dtype=torch.int64)
        self.scores = torch.zeros(n_queries, k)
        self.counts = torch.zeros(n_queries, 2, dtype=torch.int64)

    def addresses(self):
        return self.ids.data_ptr(), self.scores.data_ptr()

    @property
    def n_proven(self):
        return self.counts[:, 0]

    @property
    def n_rescored(self):
        return self.counts[:, 1]


class Ours:
    """Our calls of a problem: scores, the best k of them, and whole searches from the host."""

    def __init__(self, bench, problem, k):
        self.bench, self.problem, self.k = bench, problem, min(k, problem.case.n_docs)
        self.one = Whole(bench, problem)
        self.top_k = ours.TopK(bench.device, self.one.call, self.k)
        self.corpus = None

    def scores(self):
        """Scores `[n_queries, n_docs]` of a call."""
        case = self.problem.case
        return self.one.run().view(case.n_queries, case.n_docs)

    def best(self):
        """Enqueues scores and their selection."""
        self.one.call()
        self.top_k()

    def read(self):
        """What the last selection found."""
        found = Found(self.problem.case.n_queries, self.k)
        self.top_k.read(*found.addresses())
        return found

    def rank(self, host):
        """A search by all scores: a function of the number of its query of host memory."""
        found, at = self.room(host)
        device, documents = self.bench.device, self.one.handles[1]

        def call(i=0):
            device("rank", documents, at(i), *self.shape(found), self.k, *found.addresses())
            return found

        return call

    def hold(self):
        """Copies the documents to memory of the device's own, with codes of them."""
        case = self.problem.case
        documents = self.problem.documents.cpu()
        self.corpus = self.bench.device(
            "corpus", self.bench.device.handle, documents.data_ptr(), case.dim, case.n_docs,
            case.doc_len,
        )  # fmt: skip

    def search(self, host, n_candidates=100, exact=True):
        """A search by way of codes: as :meth:`rank`, of documents that are held."""
        found, at = self.room(host)
        device, k = self.bench.device, self.k

        def call(i=0):
            where = (*found.addresses(), found.counts.data_ptr())
            how = (k, n_candidates, int(exact))
            device("search", self.corpus, at(i), *self.shape(found), *how, *where)
            return found

        return call

    def room(self, host):
        """Room for the best of queries `[sets, n, len, dim]` of the host, and where a set is."""
        found = Found(host.shape[1], self.k)
        return found, lambda i: host[i % len(host)].data_ptr()

    def shape(self, found):
        case = self.problem.case
        return case.dim, len(found.ids), case.query_len

    def free(self):
        self.top_k.free()
        self.one.free()
        if self.corpus is not None:
            self.bench.device.free(self.corpus)


def others(problem, k):
    """The peers' searches: {name: call giving scores and ids, or why there is none}."""
    case, found = problem.case, {}
    k = min(k, case.n_docs)

    def top(score):
        return lambda: torch.topk(score().view(case.n_queries, -1), k, dim=1)

    chunk = peers.chunk_of(problem)
    for package, make in MAKERS.items():
        try:
            packages.original(package)
            if make is peers.late_interaction and chunk:
                raise ValueError("addresses of 32 bits; its retrieve takes chunks")
            found |= {f"{name} + torch.topk": top(call) for name, call in make(problem).items()}
        except Exception as error:
            found[package.replace("_", "-")] = error
    try:
        retrieve = packages.original("late_interaction_kernels").retrieve
        queries, documents = problem.queries, problem.padded
        # Rows are of length one already: it has less to do.
        how = {"normalize": False} | ({"chunk": chunk} if chunk else {})
        found[RETRIEVE] = lambda: retrieve(queries, documents, k, **how)
    except Exception as error:
        found[RETRIEVE] = error
    return found


def from_host(problem, host, best):
    """A peer's search from queries `[sets, n, len, dim]` in host memory to ids there."""

    def call(i=0):
        problem.queries.copy_(host[i % len(host)])
        scores, ids = best()
        return scores.cpu(), ids.cpu()

    return call


def check_selection(found, scores):
    """Compares what a selection has found with torch.topk: the same scores in the same order, and
    where no other is equal the same documents."""
    k = found.ids.shape[1]
    wanted, places = (x.cpu() for x in torch.topk(scores, k, dim=1))
    if not torch.equal(found.scores, wanted):
        raise ValueError("other scores than torch.topk")
    if not torch.equal(scores.cpu().gather(1, found.ids), wanted):
        raise ValueError("documents that do not have the scores")
    differ = wanted[:, 1:] != wanted[:, :-1]
    alone = torch.ones_like(found.ids, dtype=torch.bool)
    alone[:, 1:] &= differ
    alone[:, :-1] &= differ
    # The last may be equal to one that is not there.
    alone[:, -1] = False
    if not torch.equal(found.ids[alone], places[alone]):
        raise ValueError("other documents than torch.topk")


def check_best(scores, wanted):
    """A check of a peer's best, `(scores, ids)`: both are to have the best of our scores."""

    def check(_, found):
        for best in (found[0].float(), scores.gather(1, found[1].long())):
            error = float(((best - wanted) / wanted).abs().max())
            if not error <= world.TOLERANCE_PEERS:
                raise ValueError(f"the best are off by {error:.2e} relative")

    return check
