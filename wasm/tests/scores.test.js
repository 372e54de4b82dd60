// Scores of every way to give tokens, against sums in f64.
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Tokens, rank, score } from 'maxsim-wasm';

import { halves, maxsim, random, rows } from './support.js';

const DIM = 40;

/** Checks all scores of packed tokens against the f64 ones of the numbers that they stand for. */
function check(scores, queries, documents, bound) {
    const values = scores.values();
    const winners = scores.winners();
    for (const [q, query] of queries.entries()) {
        for (const [d, document] of documents.entries()) {
            const p = q * documents.length + d;
            const expected = maxsim(query, document);
            assert.ok(Math.abs(values[p] - expected.score) <= bound, `${p}: ${values[p]}`);
            const [start, end] = scores.tokenRange(p);
            assert.deepEqual(Array.from(winners.subarray(start, end)), expected.winners);
        }
    }
}

function items(matrix, offsets) {
    const ends = Array.from(offsets).map(Number);
    return ends.slice(1).map((end, i) => rows(matrix, DIM, [ends[i], end]));
}

test('elements of every type, packed and padded', () => {
    const [q, d] = [random(7 * DIM, 1), random(23 * DIM, 2)];
    const offsets = { q: [0, 3, 3, 7], d: new BigInt64Array([0n, 1n, 9n, 23n]) };
    for (const type of ['f32', 'f16', 'bf16']) {
        const [Q, D] = [q, d].map((numbers) => {
            if (type === 'f32') return { bits: numbers, exact: numbers };
            return halves(numbers, type);
        });
        const options = type === 'f32' ? {} : { type };
        const queries = Tokens.packed(Q.bits, DIM, offsets.q, options);
        const documents = Tokens.packed(D.bits, DIM, offsets.d, options);
        assert.deepEqual([queries.format, queries.count, queries.rows], [type, 3, 7]);
        assert.deepEqual(documents.data(), D.bits);
        const scores = score(queries, documents, { winners: true, tokenScores: true });
        assert.deepEqual(scores.shape, [3, 3]);
        check(scores, items(Q.exact, offsets.q), items(D.exact, offsets.d), 1e-4);
        const [start, end] = scores.tokenRange(1);
        const sum = scores.tokenScores().subarray(start, end).reduce((a, b) => a + b, 0);
        assert.ok(Math.abs(sum - scores.values()[1]) < 1e-4);
        // The same queries, padded.
        const padded = new Q.bits.constructor(3 * 4 * DIM).fill(type === 'f32' ? 9 : 0x4200);
        padded.set(Q.bits.subarray(0, 3 * DIM));
        padded.set(Q.bits.subarray(3 * DIM), 2 * 4 * DIM);
        const lengths = new Int32Array([3, 0, 4]);
        const again = score(Tokens.padded(padded, 3, 4, DIM, { ...options, lengths }), documents);
        assert.deepEqual(again.values(), scores.values());
        // And with a mask that says the same.
        const mask = Uint8Array.from({ length: 12 }, (_, i) => (i % 4 < lengths[i >> 2] ? 1 : 0));
        const masked = Tokens.padded(padded, 3, 4, DIM, { ...options, mask });
        assert.deepEqual(score(masked, documents).values(), scores.values());
    }
});

test('INT8 codes with scales of both types', () => {
    const [q, d] = [random(6 * DIM, 3), random(11 * DIM, 4)];
    const [queries, documents] = [Tokens.padded(q, 2, 3, DIM), Tokens.packed(d, DIM, [0, 5, 11])];
    for (const type of ['f16', 'f32']) {
        const [Q, D] = [queries.quantize('int8', type), documents.quantize('int8', type)];
        const scores = score(Q, D, { winners: true });
        const array = type === 'f32' ? Float32Array : Uint16Array;
        assert.ok(Q.scales() instanceof array && Q.data() instanceof Int8Array);
        // As if another program had made them.
        const given = Tokens.padded(Q.data(), 2, 3, DIM, { scales: Q.scales() });
        const other = Tokens.packed(D.data(), DIM, [0, 5, 11], { scales: D.scales() });
        const again = score(given, other, { winners: true });
        assert.deepEqual(again.values(), scores.values());
        assert.deepEqual(again.winners(), scores.winners());
        if (type === 'f16') continue;
        const exact = (codes) => codes.data().map((code) => code).reduce((numbers, code, i) => {
            numbers[i] = code * codes.scales()[Math.trunc(i / DIM)];
            return numbers;
        }, new Float32Array(codes.rows * DIM));
        check(scores, items(exact(Q), [0, 3, 6]), items(exact(D), [0, 5, 11]), 1e-4);
    }
    const affine = documents.quantize('int8-affine');
    assert.ok(affine.mins() instanceof Uint16Array && affine.scales() instanceof Uint16Array);
    assert.ok(Math.abs(score(queries.quantize('int8'), affine).values()[0] -
        score(queries, documents).values()[0]) < 0.2);
    assert.equal(documents.scales(), undefined);
});

test('pairings', () => {
    const queries = Tokens.padded(Float32Array.of(1, 0, 0, 1), 2, 1, 2);
    const documents = Tokens.padded(Float32Array.of(1, 2, 3, 4, 5, 6, 7, 8), 4, 1, 2);
    const scored = (pairing) => score(queries, documents, { pairing });
    assert.deepEqual(Array.from(scored(undefined).values()), [1, 3, 5, 7, 2, 4, 6, 8]);
    assert.deepEqual(Array.from(scored({ ownCandidates: 2 }).values()), [1, 3, 6, 8]);
    const candidates = scored({ candidates: Uint32Array.of(3, 0, 0, 1), k: 2 });
    assert.deepEqual([candidates.shape, Array.from(candidates.values())], [[2, 2], [7, 1, 2, 4]]);
    assert.deepEqual(candidates.topK(1).map((r) => r.documents[0].document), [3, 1]);
    const pairs = scored({ queries: [0, 1, 1], documents: [2, 2, 0] });
    assert.deepEqual([pairs.shape, Array.from(pairs.values())], [[3], [5, 6, 2]]);
    assert.throws(() => pairs.topK(1), /scores: expected those of this pairing/);
});

test('weights, means, normalized and angular scores', () => {
    const queries = Tokens.padded(Float32Array.of(1, 0, 0, 1), 1, 2, 2);
    const documents = Tokens.padded(Float32Array.of(3, 4, -1, 5), 1, 2, 2);
    const value = (options) => score(queries, documents, options).values()[0];
    assert.equal(value(), 8);
    const close = (found, expected) => assert.ok(Math.abs(found - expected) < 1e-6, `${found}`);
    const cosines = 0.6 + 5 / Math.sqrt(26);
    close(value({ normalize: true }), cosines);
    close(value({ angular: true }), cosines - 2);
    queries.setMeanWeights();
    assert.equal(value(), 4);
    queries.setWeights(Float32Array.of(2, -0.5));
    assert.equal(value(), 2 * 3 - 0.5 * 5);
    assert.equal(score(queries, documents, { winners: true }).values()[0], 3.5);
    queries.setWeights(undefined);
    assert.equal(value(), 8);
    assert.equal(queries.quantize('fp8').format, 'fp8');
});

test('NaN, documents without tokens, and ties have their places', () => {
    const queries = Tokens.padded(Float32Array.of(1, 0), 1, 1, 2);
    const data = Float32Array.of(1, 0, NaN, 0, 1, 0, 2, 0);
    const [{ documents, nNan, nEmpty }] = rank(
        queries, Tokens.packed(data, 2, [0, 1, 1, 2, 3, 4]), 10, { winners: true });
    assert.deepEqual(documents.map(({ document }) => document), [4, 0, 3, 2, 1]);
    assert.deepEqual(documents.map(({ score }) => score), [2, 1, 1, NaN, 0]);
    assert.deepEqual(documents.map(({ hasTokens }) => hasTokens), [true, true, true, true, false]);
    assert.deepEqual(Array.from(documents[4].winners), [-1]);
    assert.deepEqual([nNan, nEmpty], [1, 1]);
    assert.deepEqual(rank(queries, Tokens.packed(data, 2, [0]), 10)[0].documents, []);
});
