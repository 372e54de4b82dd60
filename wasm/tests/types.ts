// What the types take, and what they refuse: this file is checked, never run.
import { type Ranking, Scores, Tokens, rank, rankFiles, score } from 'maxsim-wasm';

const queries: Tokens = Tokens.padded(new Float32Array(4), 2, 1, 2, { lengths: [1, 0] });
const documents = Tokens.packed(new Uint16Array(4), 2, new Int32Array([0, 2]), { type: 'f16' });
const codes: Tokens = documents.quantize('int8', 'f32');
const data: Int8Array | Uint8Array | Uint16Array | Float32Array = codes.data();
const scores: Scores = score(queries, documents, {
    pairing: { candidates: new Uint32Array(2), k: 1 },
    winners: true,
});
const best: Ranking[] = scores.topK(3);
const id: number = best[0].documents[0].document;
const winners: Int32Array | undefined = rank(queries, documents, 1)[0].documents[0].winners;
const files: Ranking[] = rankFiles(new Uint8Array(), new Uint8Array(), 10, { normalize: true });
const range: [number, number] | undefined = scores.tokenRange(0);
queries.setWeights(undefined);
export { data, files, id, range, winners };

// @ts-expect-error Arrays of numbers are no vectors.
Tokens.padded([1, 2], 1, 1, 2);
// @ts-expect-error Elements have no other types.
Tokens.padded(new Uint16Array(2), 1, 1, 2, { type: 'f64' });
// @ts-expect-error Packed items have offsets.
Tokens.packed(new Float32Array(2), 2, [0, 1], { lengths: [1] });
// @ts-expect-error There is no such option.
score(queries, documents, { winner: true });
// @ts-expect-error Candidates need k.
score(queries, documents, { pairing: { candidates: [0] } });
// @ts-expect-error Tokens come from functions.
new Tokens();
// @ts-expect-error Sizes do not change.
queries.dim = 3;
