"""Random tokens whose similarities are spread as those of a text encoder's are.

Random unit vectors are all about equally far from each other, and so all documents score nearly the
same, which no real collection's do. Here a token is the sum of

    a direction that all share + its topic's + its document's + its word's + its own

each a random vector of a Gaussian whose variance falls from dimension to dimension, and is divided
by its length. A document has words of its topic's vocabulary and of the common one. A query has
tokens of one document, moved by half.

The weights below were fitted to the embeddings of 1000 package descriptions and 250 questions (dim
128, 104 tokens and 12 on average, an encoder of the ColBERT family): :data:`REAL` has what was
measured of them, :meth:`Spread.statistics` measures the same of what is drawn, and a record has
both.
"""

import math

import torch

#: Of the real set: mean and deviation of the similarity of tokens, its mean within a document, and
#: of scores per query token, over 1000 documents, how many deviations above the mean those of the
#: first, tenth and hundredth place are, and what a deviation is.
REAL = {
    "token_mean": 0.081,
    "token_deviation": 0.135,
    "within_document": 0.371,
    "score_deviation": 0.0703,
    "first": 6.42,
    "tenth": 2.86,
    "hundredth": 1.28,
}

#: Shares of a token's square that each part has.
SHARED, TOPIC, DOCUMENT, WORD = 0.08, 0.20, 0.08, 0.40
#: How variances fall: that of dimension i is proportional to 1 / (i + OFFSET), of what topics and
#: documents have in their tokens to its square, so that topics are near to others.
OFFSET, OFFSET_OF_SUBJECTS = 10.0, 4.0
#: Documents of a topic in the mean: a larger collection has more topics.
DOCUMENTS_OF_TOPIC = 16
N_WORDS, WORDS_OF_TOPIC = 4096, 24
#: Of a document's tokens, those whose word is of its topic.
OF_TOPIC = 0.6
#: How much of a query token's square is its own.
MOVED = 0.5
#: Tokens that are drawn at once.
TOKENS_AT_ONCE = 1 << 20
#: Documents that statistics are of, as many as the real set has.
SAMPLE = 1000


class Spread:
    """A collection that documents and queries are drawn from, always the same for a seed."""

    def __init__(self, device, dim, n_documents, seed=1):
        self.device, self.dim = device, dim
        self.n_topics = max(1, n_documents // DOCUMENTS_OF_TOPIC)
        self.generator = torch.Generator(device).manual_seed(seed)
        places = torch.arange(dim, device=device)
        falling = 1 / (places + OFFSET), 1 / (places + OFFSET_OF_SUBJECTS) ** 2
        self.deviations, self.of_subjects = ((x / x.sum()).sqrt() for x in falling)
        self.shared = torch.nn.functional.normalize(self.drawn(1), dim=-1)
        self.topics, self.words = self.subjects(self.n_topics), self.drawn(N_WORDS)
        self.vocabulary = self.integers(N_WORDS, self.n_topics, WORDS_OF_TOPIC)

    def drawn(self, *shape):
        """Vectors of length one in the mean of squares."""
        drawn = torch.randn(*shape, self.dim, device=self.device, generator=self.generator)
        return drawn * self.deviations

    def subjects(self, *shape):
        """The same of a topic or a document."""
        drawn = torch.randn(*shape, self.dim, device=self.device, generator=self.generator)
        return drawn * self.of_subjects

    def integers(self, end, *shape):
        return torch.randint(0, end, shape, device=self.device, generator=self.generator)

    def documents(self, n, length, dtype=torch.float16, out=None):
        """Tokens `[n, length, dim]`; into `out`, which may be on the host."""
        shape = (n, length, self.dim)
        out = torch.empty(shape, dtype=dtype, device=self.device) if out is None else out
        at_once = max(1, TOKENS_AT_ONCE // length)
        for first in range(0, n, at_once):
            part = out[first : first + at_once]
            part.copy_(self.some_documents(len(part), length).to(dtype))
        return out

    def some_documents(self, n, length):
        topics = self.integers(self.n_topics, n)
        own = torch.rand(n, length, device=self.device, generator=self.generator) < OF_TOPIC
        places = self.integers(WORDS_OF_TOPIC, n, length)
        # Common words are the more common the lower their number is.
        common = torch.rand(n, length, device=self.device, generator=self.generator)
        common = (N_WORDS**common).long() - 1
        words = torch.where(own, self.vocabulary[topics[:, None], places], common)
        tokens = self.drawn(n, length)
        tokens *= math.sqrt(1 - SHARED - TOPIC - DOCUMENT - WORD)
        tokens += math.sqrt(WORD) * self.words[words]
        tokens += math.sqrt(SHARED) * self.shared
        tokens += math.sqrt(TOPIC) * self.topics[topics][:, None]
        tokens += math.sqrt(DOCUMENT) * self.subjects(n)[:, None]
        return torch.nn.functional.normalize(tokens, dim=-1)

    def queries(self, documents, n, length):
        """Queries `[n, length, dim]` of tokens of documents `[n_documents, len, dim]`."""
        of = self.integers(len(documents), n)
        tokens = documents[of.to(documents.device)].to(self.device).float()
        places = self.integers(tokens.shape[1], n, length)
        tokens = tokens.gather(1, places[..., None].expand(-1, -1, self.dim))
        tokens = math.sqrt(1 - MOVED) * tokens + math.sqrt(MOVED) * self.drawn(n, length)
        return torch.nn.functional.normalize(tokens, dim=-1).to(documents.dtype)

    def statistics(self, documents, queries):
        """What :data:`REAL` has, of the first documents and of queries."""
        documents, queries = (x.to(self.device).float() for x in (documents[:SAMPLE], queries))
        n, length, dim = documents.shape
        tokens = documents.view(-1, dim)
        some = tokens[self.integers(len(tokens), 2000)]
        pairs = (some @ some.T)[~torch.eye(len(some), dtype=torch.bool, device=self.device)]
        sums = torch.stack([one.sum(0).square().sum() - length for one in documents[:100]])
        of = lambda query: (query @ tokens.T).view(len(query), n, length).amax(2).mean(0)
        scores = torch.stack([of(query) for query in queries])
        deviations = scores.std(1, keepdim=True)
        places = ((scores - scores.mean(1, keepdim=True)) / deviations).sort(1, descending=True)
        at = lambda place: float(places.values[:, min(place, n) - 1].mean())
        return {
            "token_mean": float(pairs.mean()),
            "token_deviation": float(pairs.std()),
            "within_document": float(sums.mean()) / (length * (length - 1)),
            "score_deviation": float(deviations.mean()),
            "first": at(1),
            "tenth": at(10),
            "hundredth": at(100),
        }
