"""What each storage format does to rankings, on real data: nDCG@10, recall@10, the overlap of the
best ten and twenty with those of float64, Spearman's rank correlation, and errors of scores.

    python3 -m bench.fidelity --tool target/release/maxsim --data FOLDER --out fidelity.json

FOLDER has `documents.safetensors`, `queries.safetensors` (f16, packed, with `offsets`) and
`queries.jsonl` with relevant documents. The tool compresses and ranks; float64 is NumPy's, of the
embeddings as they are stored. No GPU is needed, and none is used. Needs NumPy and safetensors.
"""
