"""The other libraries' calls for a problem. Both are imported as they are installed."""

import torch


def calls(problem):
    """{name: call or the error of making it}."""
    made = {}
    for name, make in (("flash-maxsim", flash), ("late-interaction-kernels", late_interaction)):
        try:
            made |= make(problem)
        except Exception as error:  # a peer that is not installed, or refuses the shape
            made[name] = error
    return made


def flash(problem):
    import flash_maxsim

    case, queries = problem.case, problem.queries
    if case.kind == "candidates":
        documents = problem.padded
        return {"flash-maxsim": lambda: flash_maxsim.flash_maxsim_batched(queries, documents, shared_docs=False)}
    if case.kind == "ragged":
        offsets = problem.offsets.to(torch.int32).to(problem.device)
        longest = int(problem.lengths.max())
        packed = problem.documents

        def each_query():
            score = flash_maxsim.flash_maxsim_packed
            return [score(query, packed, offsets, longest) for query in queries]

        if case.n_queries > 1:
            return {"flash-maxsim packed": each_query}
        one = queries[0]
        found = {"flash-maxsim packed": lambda: flash_maxsim.flash_maxsim_packed(one, packed, offsets, longest)}
        if case.n_docs <= 1000:
            padded, lengths = pad(problem), problem.lengths.to(problem.device)
            found["flash-maxsim padded"] = lambda: flash_maxsim.flash_maxsim(one, padded, lengths)
        return found
    documents = problem.padded
    if case.n_queries > 1:
        return {"flash-maxsim": lambda: flash_maxsim.flash_maxsim_batched(queries, documents, shared_docs=True)}
    one = queries[0]
    return {"flash-maxsim": lambda: flash_maxsim.flash_maxsim(one, documents)}


def late_interaction(problem):
    import late_interaction_kernels

    case, queries = problem.case, problem.queries
    name = "late-interaction-kernels"
    if case.kind != "ragged":
        documents = problem.padded
        return {name: lambda: late_interaction_kernels.maxsim(queries, documents)}
    offsets = problem.offsets.to(torch.int32).to(problem.device)
    starts = torch.arange(case.n_queries + 1, dtype=torch.int32) * case.query_len
    starts = starts.to(problem.device)
    flat, packed = queries.view(-1, case.dim), problem.documents
    longest = int(problem.lengths.max())
    score = late_interaction_kernels.maxsim_varlen
    return {name: lambda: score(flat, packed, starts, offsets, case.query_len, longest)}


def pad(problem):
    """The ragged documents as one padded tensor."""
    case = problem.case
    longest = int(problem.lengths.max())
    padded = torch.zeros(case.n_docs, longest, case.dim, dtype=problem.documents.dtype, device=problem.device)
    valid = torch.arange(longest)[None] < problem.lengths[:, None]
    padded[valid.to(problem.device)] = problem.documents
    return padded


def pytorch(problem):
    """MaxSim as PyTorch users write it: {name: call}."""
    query, documents = problem.queries[0], problem.padded

    def eager():
        return torch.einsum("sd,ntd->nst", query, documents).amax(2).float().sum(1)

    def chunked():
        return torch.cat(
            [torch.einsum("sd,ntd->nst", query, part).amax(2).float().sum(1) for part in documents.split(256)]
        )

    compiled = torch.compile(eager, dynamic=False)
    return {"PyTorch, eager": eager, "PyTorch, in chunks of 256": chunked, "PyTorch, compiled": compiled}
