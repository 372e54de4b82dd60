"""Trains a late-interaction encoder from nothing: a BERT of 4 layers of 256, in minutes.

    python python/examples/train_contrastive.py                      # a GPU if there is one
    python python/examples/train_contrastive.py --device cpu --steps 20

A question is the synopsis of a Debian package or some words of its description, and what is to be
found is the description, among those of the whole batch. One synopsis in four is held out, with
its description: nDCG@10 of these against all descriptions is printed before and after. loss.csv,
result.json and training.svg in the folder ``--out`` have the loss of every step and both figures.

Needs torch, transformers and tokenizers. ``--data`` is a folder with documents.jsonl and
queries.jsonl; the sample in the repository has 200 documents, enough for a try.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path

import torch

import encoder
import figure
import maxsim
import packages
from encoder import DOCUMENT, QUERY, Encoder


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=packages.SAMPLE)
    parser.add_argument("--out", type=Path, default=Path("target/train_contrastive"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=64, help="questions of a step")
    parser.add_argument("--rate", type=float, default=3e-4, help="the highest learning rate")
    parser.add_argument("--temperature", type=float, default=0.2,
                        help="scores are divided by it: short questions have small ones")
    parser.add_argument("--vocabulary", type=int, default=4000)
    parser.add_argument("--query-length", type=int, default=32)
    parser.add_argument("--document-length", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.steps < 1:
        parser.error("--steps must be at least 1")
    return options


def held_out_ndcg(model: Encoder, data: packages.Packages) -> float:
    """nDCG@10 of the held-out questions against all documents."""
    q, q_mask = model.encode([query.text for query in data.held_out], QUERY)
    d, d_mask = model.encode(data.documents, DOCUMENT)
    scores = maxsim.maxsim(q, d, q_mask=q_mask, d_mask=d_mask)
    return packages.ndcg(scores.cpu(), data.held_out)


def rate_at(step: int, steps: int) -> float:
    """The part of the learning rate at a step: up in a tenth of the steps, down in the others."""
    warm = max(1, steps // 10)
    if step < warm:
        return (step + 1) / warm
    return 0.5 + 0.5 * math.cos(math.pi * (step - warm) / max(1, steps - warm))


def train(model: Encoder, pairs: packages.Pairs, options: argparse.Namespace) -> list[float]:
    """Learns, and gives the loss of every step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: rate_at(n, options.steps))
    loss_of = maxsim.losses.ContrastiveLoss(temperature=options.temperature)
    losses = []
    model.train()
    for step in range(options.steps):
        questions, documents = pairs.batch(options.batch)
        q, q_mask = model(questions, QUERY)
        d, d_mask = model(documents, DOCUMENT)
        # Every other document of the batch is a wrong one.
        loss = loss_of(q, d, q_mask=q_mask, d_mask=d_mask)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step % 50 == 0 or step + 1 == options.steps:
            print(f"step {step + 1:5}  loss {losses[-1]:.4f}", flush=True)
    return losses


def main() -> None:
    """Trains, and says what it was worth."""
    options = arguments()
    torch.manual_seed(options.seed)
    data = packages.read(options.data)
    texts = [data.documents[id] for id in data.to_learn_from]
    texts += [query.text for query in data.train]
    tokenizer = encoder.train_tokenizer(texts, options.vocabulary)
    model = Encoder(tokenizer, query_length=options.query_length,
                    document_length=options.document_length).to(options.device)
    n_parameters = sum(x.numel() for x in model.parameters()) / 1e6
    print(f"{len(data.documents)} documents, {len(data.train)} synopses to learn from, "
          f"{len(data.held_out)} held out; {n_parameters:.1f} M parameters on {options.device}")

    before = held_out_ndcg(model, data)
    print(f"nDCG@10 before {before:.4f}", flush=True)
    began = time.perf_counter()
    losses = train(model, packages.Pairs(data, options.seed), options)
    seconds = time.perf_counter() - began
    after = held_out_ndcg(model, data)
    print(f"nDCG@10 after  {after:.4f}, {options.steps} steps in {seconds:.0f} s")

    options.out.mkdir(parents=True, exist_ok=True)
    rows = [f"{step + 1},{loss:.6f}\n" for step, loss in enumerate(losses)]
    (options.out / "loss.csv").write_text("step,loss\n" + "".join(rows))
    title = f"Contrastive training, batches of {options.batch}, {options.device}"
    picture = figure.training(title, losses, before, after)
    (options.out / "training.svg").write_text(picture)
    settings = {key: str(value) for key, value in vars(options).items() if key != "out"}
    settings["data"] = options.data.name
    result = {"options": settings, "documents": len(data.documents),
              "held_out": len(data.held_out), "seconds": round(seconds, 1),
              "ndcg_at_10": {"before": before, "after": after}, "losses": losses}
    (options.out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    tokenizer.save(str(options.out / "tokenizer.json"))
    torch.save(model.state_dict(), options.out / "model.pt")
    print(f"wrote {options.out}/loss.csv, result.json, training.svg, tokenizer.json, model.pt")


if __name__ == "__main__":
    main()
