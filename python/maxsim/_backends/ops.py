"""The operators of torch: what compilers, transforms and modes see."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from .._sides import CANDIDATES, CROSS, OWN, PAIRS
from .._sides import Options, Pairing, Result, Side, check, check_call
from .cuda import winner_type_of
from .torch import CODES, ELEMENTS, check_devices, run, run_backward

#: Namespace of the operators: the name that the package was imported under, so that a copy of it
#: under another name (a kernel of the Hub) can be in the same process.
NAMESPACE = __name__.partition(".")[0]

_SIDES = ", ".join(
    f"Tensor {side}, Tensor? {side}_mask, Tensor? {side}_first, Tensor? {side}_lengths, "
    f"Tensor? {side}_scales, Tensor? {side}_mins" for side in "qd"
)
_CALL = f"{_SIDES}, Tensor? q_ids, Tensor? d_ids, int pairing, int k, SymInt max_q_len, " \
        "SymInt max_d_len, bool normalize, bool tf32, bool consistent"

# What torch has no types of.
_library: Any = cast(Any, torch.library).Library(NAMESPACE, "DEF")
_library.define(f"score({_CALL}, bool winners, bool token_scores) -> (Tensor, Tensor, Tensor)",
                tags=torch.Tag.pt2_compliant_tag)
_library.define(
    f"score_backward(Tensor grad, Tensor winners, {_CALL}, bool needs_q, bool needs_d)"
    " -> (Tensor, Tensor)", tags=torch.Tag.pt2_compliant_tag)

#: Arguments of a call before those of an operator's own.
_N_CALL = 21


def _call(args: tuple[Any, ...]) -> tuple[Side, Side, Pairing, Options]:
    q, d = Side(*args[:6]), Side(*args[6:12])
    q_ids, d_ids, kind, k, max_q_len, max_d_len, normalize, tf32, consistent = args[12:_N_CALL]
    options = Options(normalize, tf32, max_q_len=max_q_len, max_d_len=max_d_len,
                      consistent=consistent)
    return q, d, Pairing(kind, k, q_ids, d_ids), options


def _check(q: Side, d: Side, pairing: Pairing) -> None:
    """Checks a call that may have come without the package's own functions."""
    kinds = {CROSS: (False, False), OWN: (False, False), CANDIDATES: (False, True),
             PAIRS: (True, True)}
    check(pairing.kind in kinds, "pairing", "0 to 3", pairing.kind)
    has = (pairing.q_ids is not None, pairing.d_ids is not None)
    check(has == kinds[pairing.kind], "q_ids and d_ids", f"those of pairing {pairing.kind}", has)
    check(pairing.k >= 0, "k", "0 or more", pairing.k)
    for name, side in (("Q", q), ("D", d)):
        for what, x, types in (
                ("", side.data, CODES), ("_mask", side.mask, (torch.bool, torch.uint8)),
                ("_first", side.first, _INDICES), ("_lengths", side.lengths, _INDICES),
                (" scales", side.scales, (torch.float16, torch.float32)),
                (" mins", side.mins, (torch.float16,))):
            if x is not None and x.dtype not in types:
                raise TypeError(f"{name}{what}: no such element type: {x.dtype}")
        of_codes = side.data.dtype not in ELEMENTS
        check((side.scales is not None) == of_codes, f"{name} scales", "those of codes alone",
              "some" if side.scales is not None else "none")
        for x in (side.scales, side.mins):
            if x is not None and x.ndim:
                check(x.shape == side.data.shape[:-1], f"{name} scales",
                      f"shape {tuple(side.data.shape[:-1])}", tuple(x.shape))
    for ids in (pairing.q_ids, pairing.d_ids):
        if ids is not None and ids.dtype not in _INDICES:
            raise TypeError(f"ids: expected int32 or int64, found {ids.dtype}")
    check_call(q, d, pairing)
    check_devices(q, d, pairing)


#: Element types of offsets, lengths and ids.
_INDICES = (torch.int32, torch.int64)


def _score(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    q, d, pairing, options = _call(args)
    _check(q, d, pairing)
    winners, token_scores = args[_N_CALL:]
    found = run(q, d, pairing, options._replace(winners=winners, token_scores=token_scores))
    none = found.scores.new_empty(0)
    return (
        found.scores,
        none.to(_winner_type(d)) if found.winners is None else found.winners,
        none if found.token_scores is None else found.token_scores,
    )


def _score_fake(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    q, d, pairing, options = _call(args)
    winners, token_scores = args[_N_CALL:]
    shape = _shape(q, d, pairing)
    new = q.data.new_empty
    wide = (*shape, options.max_q_len)
    return (
        new(shape, dtype=torch.float32),
        new(wide if winners else (0,), dtype=_winner_type(d)),
        new(wide if token_scores else (0,), dtype=torch.float32),
    )


def _winner_type(d: Side) -> torch.dtype:
    longest = d.data.shape[1] if d.data.ndim == 3 else d.data.shape[0]
    return winner_type_of(d.data.device.type, longest)


def _shape(q: Side, d: Side, pairing: Pairing) -> tuple[Any, ...]:
    """As :meth:`Pairing.shape`, of sizes that may be symbols."""
    def n_items(side: Side) -> Any:
        if side.first is None:
            return side.data.shape[0]
        return side.first.shape[0] - (1 if side.lengths is None else 0)

    if pairing.kind == 0:
        return (n_items(q), n_items(d))
    if pairing.kind == 3:
        return (pairing.d_ids.shape[0],)
    return (n_items(q), pairing.k)


def _score_backward(grad: Tensor, winners: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    q, d, pairing, options = _call(args)
    _check(q, d, pairing)
    shape = pairing.shape(q, d)
    check(tuple(grad.shape) == shape, "grad", f"shape {shape}", tuple(grad.shape))
    check(tuple(winners.shape[:-1]) == shape and winners.ndim == len(shape) + 1, "winners",
          f"shape [*{shape}, Lq]", tuple(winners.shape))
    if winners.dtype != _winner_type(d):
        raise TypeError(f"winners: expected {_winner_type(d)}, found {winners.dtype}")
    for name, x in (("grad", grad), ("winners", winners)):
        check(x.device == q.data.device, name, f"a tensor on {q.data.device}", x.device)
    needs = args[_N_CALL:]
    of_q, of_d = run_backward(grad, winners, q, d, pairing, options, needs)
    return (q.data.new_empty(0) if of_q is None else of_q,
            d.data.new_empty(0) if of_d is None else of_d)


def _score_backward_fake(grad: Tensor, winners: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    q, d, _, _ = _call(args)
    needs_q, needs_d = args[_N_CALL:]
    return (q.data.new_empty(q.data.shape if needs_q else (0,)),
            d.data.new_empty(d.data.shape if needs_d else (0,)))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    tensors = [x if isinstance(x, Tensor) else None for x in inputs[:14]]
    ctx.save_for_backward(output[1], *tensors)
    ctx.rest = inputs[14:_N_CALL]
    ctx.has_winners = inputs[_N_CALL]
    ctx.mark_non_differentiable(output[1], output[2])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Any, ...]:
    rest: tuple[Any, ...] = (None,) * (_N_CALL + 1)
    if grad is None:
        return (None, *rest)
    if not ctx.has_winners:
        raise RuntimeError(f"{NAMESPACE}::score: gradients need winners; call it with winners=True")
    winners, *tensors = ctx.saved_tensors
    needs_q, needs_d = ctx.needs_input_grad[0], ctx.needs_input_grad[6]
    backward = getattr(torch.ops, NAMESPACE).score_backward
    of_q, of_d = backward(grad, winners, *tensors, *ctx.rest, needs_q, needs_d)
    return (of_q if needs_q else None, None, None, None, None, None,
            of_d if needs_d else None, *rest[:_N_CALL + 2 - 7])


for _key in ("CPU", "CUDA"):
    _library.impl("score", _score, _key)
    _library.impl("score_backward", _score_backward, _key)
torch.library.register_fake(f"{NAMESPACE}::score", _score_fake, lib=_library)
torch.library.register_fake(f"{NAMESPACE}::score_backward", _score_backward_fake, lib=_library)
torch.library.register_autograd(
    f"{NAMESPACE}::score", _backward, setup_context=_setup_context, lib=_library)


def score(q: Side, d: Side, pairing: Pairing, options: Options, needs_grad: bool) -> Result:
    """Scores tensors through the dispatcher."""
    scores, winners, token_scores = getattr(torch.ops, NAMESPACE).score(
        *q[:-1], *d[:-1], pairing.q_ids, pairing.d_ids, pairing.kind, pairing.k, options.max_q_len,
        options.max_d_len, options.normalize, options.tf32, options.consistent,
        options.winners or needs_grad, options.token_scores,
    )
    if options.winners and q.data.device.type == "cuda":
        from . import cuda as _cuda

        winners = _cuda.dense_winners(winners, q, pairing, d)
    return Result(scores, winners if options.winners else None,
                  token_scores if options.token_scores else None)
