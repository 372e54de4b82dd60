"""Tokens, lengths and exact scores of a few documents, with PyTorch."""

import copy
import dataclasses

import torch

DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
# Rows that are drawn at once, in f32.
ROWS_AT_ONCE = 1 << 22


def unit(n_rows, dim, dtype, device):
    """Random tokens of length one, `[n_rows, dim]`."""
    tokens = torch.empty(n_rows, dim, dtype=dtype, device=device)
    for first in range(0, n_rows, ROWS_AT_ONCE):
        rows = tokens[first : first + ROWS_AT_ONCE]
        drawn = torch.randn(rows.shape, device=device)
        rows.copy_(torch.nn.functional.normalize(drawn, dim=-1))
    return tokens


def lengths_of(name, n):
    """Document lengths; the draws follow the peers' published campaign."""
    if name == "log-normal 100k":
        return log_normal(n, torch.Generator().manual_seed(2))
    generator = torch.Generator().manual_seed(1)
    drawn = {
        "uniform": torch.randint(256, 513, (n,), generator=generator),
        "log-normal": log_normal(n, generator),
        "exponential": torch.empty(n)
        .exponential_(1 / 71, generator=generator)
        .clamp(8, 512)
        .long(),
    }
    return drawn[name]


def log_normal(n, generator):
    return (torch.randn(n, generator=generator) * 0.45 + 4.65).exp().clamp(16, 512).long()


class Problem:
    """The tensors of a case: queries `[n_queries, query_len, dim]`, documents `[rows, dim]`."""

    def __init__(self, case, device):
        torch.manual_seed(0)
        self.case, self.device = case, device
        dtype = DTYPES[case.element]
        n_items = case.n_docs * (case.n_queries if case.kind == "candidates" else 1)
        if case.lengths:
            self.lengths = lengths_of(case.lengths, n_items)
            self.offsets = torch.zeros(n_items + 1, dtype=torch.int64)
            self.offsets[1:] = self.lengths.cumsum(0)
            n_rows = int(self.offsets[-1])
        else:
            self.lengths = self.offsets = None
            n_rows = n_items * case.doc_len
        self.n_items, self.n_rows = n_items, n_rows
        shape = (case.n_queries, case.query_len, case.dim)
        self.queries = unit(shape[0] * shape[1], case.dim, dtype, device).view(shape)
        self.mask = None
        self.draw_documents(dtype)

    def draw_documents(self, dtype):
        self.documents = unit(self.n_rows, self.case.dim, dtype, self.device)

    def first(self, n):
        """The problem of the first n documents, in the same memory."""
        part = copy.copy(self)
        part.case = dataclasses.replace(self.case, n_docs=n)
        part.n_items, part.n_rows = n, n * self.case.doc_len
        part.documents = self.documents[: part.n_rows]
        return part

    def draw_mask(self):
        """Marks half of the document rows as invalid."""
        self.mask = torch.randint(0, 2, (self.n_rows,), dtype=torch.uint8, device=self.device)

    @property
    def padded(self):
        """Documents `[n, len, dim]`, or `[n_queries, k, len, dim]` for candidates."""
        case = self.case
        lead = (case.n_queries,) if case.kind == "candidates" else ()
        return self.documents.view(*lead, case.n_docs, case.doc_len, case.dim)

    def flop(self):
        """Multiplications and additions of the products."""
        case = self.case
        n_queries = 1 if case.kind == "candidates" else case.n_queries
        return 2 * case.dim * n_queries * case.query_len * self.n_rows

    def n_scores(self):
        return self.case.n_queries * self.case.n_docs

    def rows_of(self, item):
        if self.offsets is None:
            return slice(item * self.case.doc_len, (item + 1) * self.case.doc_len)
        return slice(int(self.offsets[item]), int(self.offsets[item + 1]))

    def exact_queries(self, dtype):
        """Queries as `dtype` has them, in float64."""
        return self.queries.to(dtype).double()

    def exact_rows(self, item, dtype):
        """Rows of a document as `dtype` has them, in float64."""
        return self.documents[self.rows_of(item)].to(dtype).double()

    def sample(self, n, dtype):
        """Some (query or None for all, document) with the float64 scores of the tokens in
        `dtype`: the ends and a few documents between them, over all rows, and over those that
        the mask leaves."""
        generator = torch.Generator().manual_seed(7)
        drawn = torch.randint(0, self.n_items, (n,), generator=generator).tolist()
        found = []
        for item in sorted({0, self.n_items - 1, *drawn}):
            own = item // self.case.n_docs if self.case.kind == "candidates" else None
            queries = self.exact_queries(dtype)
            queries = queries if own is None else queries[own : own + 1]
            similarity = queries.reshape(-1, self.case.dim) @ self.exact_rows(item, dtype).T
            sums = lambda s: s.amax(1).view(queries.shape[:2]).sum(1)
            masked = None
            if self.mask is not None:
                invalid = self.mask[self.rows_of(item)] == 0
                if not bool(invalid.all()):
                    masked = sums(similarity.masked_fill(invalid, -torch.inf))
            found.append((own, item, sums(similarity), masked))
        return found

    def largest_error(self, scores, sample, masked=False):
        """Largest relative error of scores `[n_queries, n_docs]` against the sample; infinite
        where any score is not finite."""
        if isinstance(scores, (list, tuple)):
            scores = torch.stack([one.reshape(-1) for one in scores])
        scores = scores.reshape(self.case.n_queries, self.case.n_docs)
        if not bool(torch.isfinite(scores).all()):
            return float("inf")
        largest = 0.0
        for own, item, plain, with_mask in sample:
            expected = with_mask if masked else plain
            if expected is None:
                continue
            found = scores[:, item] if own is None else scores[own, item % self.case.n_docs].view(1)
            error = ((found.double() - expected) / expected).abs().max()
            largest = max(largest, float(error))
        return largest
