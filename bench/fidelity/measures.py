"""The measures, of arrays `[queries, documents]`."""

import numpy

#: Places that count.
DEPTH = 10


def exact_scores(queries, documents):
    """Scores in float64, `[queries, documents]`."""
    rows = documents["embeddings"].astype(numpy.float64)
    starts = documents["offsets"][:-1]
    assert (numpy.diff(documents["offsets"]) > 0).all(), "an empty document has no largest token"
    scores = []
    for first, end in zip(queries["offsets"], queries["offsets"][1:], strict=False):
        similar = queries["embeddings"][first:end].astype(numpy.float64) @ rows.T
        scores.append(numpy.maximum.reduceat(similar, starts, axis=1).sum(axis=0))
    return numpy.array(scores)


def ranks(scores):
    """Places of documents, the best 0; of equal scores the lower number first."""
    order = numpy.argsort(-scores, axis=1, kind="stable")
    places = numpy.empty_like(order)
    numpy.put_along_axis(places, order, numpy.arange(scores.shape[1])[None, :], axis=1)
    return order, places


def spearman(found, exact):
    """Rank correlation of each query's documents, the mean of all queries."""
    places = numpy.stack([ranks(found)[1], ranks(exact)[1]]).astype(numpy.float64)
    places -= places.mean(axis=2, keepdims=True)
    covariance = (places[0] * places[1]).sum(axis=1)
    return float((covariance / numpy.sqrt((places**2).sum(axis=2).prod(axis=0))).mean())


def overlap(found, exact, depth):
    """Share of the exact best documents that are among the best found, the mean of all queries."""
    best = zip(ranks(found)[0][:, :depth], ranks(exact)[0][:, :depth], strict=True)
    return float(numpy.mean([len(numpy.intersect1d(a, b)) / depth for a, b in best]))


def judged(order, relevant):
    """nDCG@10 and recall@10, of judgements that are 0 or 1, over the queries that have some."""
    ndcg, recall = [], []
    discounts = 1 / numpy.log2(numpy.arange(2, DEPTH + 2))
    for best, wanted in zip(order[:, :DEPTH], relevant, strict=True):
        if not wanted:
            continue
        is_relevant = numpy.isin(best, wanted)
        ideal = discounts[: min(len(wanted), DEPTH)].sum()
        ndcg.append((is_relevant * discounts[: len(best)]).sum() / ideal)
        recall.append(is_relevant.sum() / len(wanted))
    return float(numpy.mean(ndcg)), float(numpy.mean(recall))


def row(name, order, found, exact, relevant, bytes_per_token):
    """The figures of a format; `found` has a score of every document, or is None."""
    ndcg, recall = judged(order, relevant)
    figures = {
        "case": name,
        "ndcg_at_10": round(ndcg, 6),
        "recall_at_10": round(recall, 6),
        "bytes_per_token": round(bytes_per_token, 2),
    }
    places = -numpy.argsort(order, axis=1, kind="stable") if found is None else found
    figures["top_10_overlap"] = round(overlap(places, exact, 10), 6)
    figures["top_20_overlap"] = round(overlap(places, exact, 20), 6)
    if found is not None:
        errors = numpy.abs(found - exact) / numpy.abs(exact).clip(1e-9)
        figures["spearman"] = round(spearman(found, exact), 6)
        figures["mean_relative_error"] = float(f"{errors.mean():.3e}")
        figures["largest_relative_error"] = float(f"{errors.max():.3e}")
    return figures
