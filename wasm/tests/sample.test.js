// The tool's sample: rankings, winners and codes are those of the tool.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import { test } from 'node:test';

import { Tokens, rank, rankFiles } from 'maxsim-wasm';

import { bytes, made, ranked, sample } from './support.js';

const K = 10;
// An f32 score may err by the order that its products are added in.
const BOUND = 1e-5;

test('rankings and winners are those of the tool', () => {
    const names = ['queries.safetensors', 'documents.safetensors'];
    const files = names.map((name) => bytes(sample, name));
    const rankings = rankFiles(...files, K, { winners: true });
    const expected = ranked('ranking.json');
    assert.equal(rankings.length, 50);
    assert.equal(expected.length, 50);
    for (const [query, { documents, nNan, nEmpty }] of rankings.entries()) {
        const { documents: ids, scores, winners } = expected[query];
        assert.deepEqual(documents.map(({ document }) => document), ids);
        assert.deepEqual(documents.map((ranked) => Array.from(ranked.winners)), winners);
        for (const [place, { score }] of documents.entries()) {
            assert.ok(Math.abs(score - scores[place]) <= BOUND * Math.abs(scores[place]));
        }
        assert.deepEqual([documents.length, nNan, nEmpty], [K, 0, 0]);
    }
});

test('scores of INT8 codes have the bits of the tool', () => {
    const names = ['queries.int8.safetensors', 'documents.int8.safetensors'];
    const files = names.map((name) => bytes(made, name));
    const rankings = rankFiles(...files, K, { winners: true });
    for (const [query, { documents, scores, winners }] of ranked('int8.json').entries()) {
        const found = rankings[query].documents;
        assert.deepEqual(found.map(({ document }) => document), documents);
        assert.deepEqual(found.map(({ score }) => score), scores.map(Math.fround));
        assert.deepEqual(found.map((ranked) => Array.from(ranked.winners)), winners);
    }
});

test('codes are those of the tool', () => {
    for (const side of ['queries', 'documents']) {
        const tokens = Tokens.fromSafetensors(bytes(sample, `${side}.safetensors`));
        const file = Tokens.fromSafetensors(bytes(made, `${side}.int8.safetensors`));
        const codes = tokens.quantize('int8');
        assert.equal(codes.format, 'int8');
        assert.deepEqual(codes.lengths(), file.lengths());
        assert.deepEqual(codes.data(), file.data());
        assert.deepEqual(codes.scales(), file.scales());
        assert.ok(codes.scales() instanceof Uint16Array);
    }
});

test('what is held once is ranked as files are', () => {
    const [queries, documents] = ['queries', 'documents'].map((side) =>
        Tokens.fromSafetensors(bytes(sample, `${side}.safetensors`)));
    assert.deepEqual([queries.count, documents.count, documents.dim], [50, 200, 128]);
    assert.deepEqual([queries.format, queries.ids(), queries.warnings()], ['f16', undefined, []]);
    const expected = ranked('ranking.json').map(({ documents }) => documents);
    for (let time = 0; time < 2; time += 1) {
        const found = rank(queries, documents, K);
        const ids = found.map(({ documents }) => documents.map(({ document }) => document));
        assert.deepEqual(ids, expected);
        assert.equal(found[0].documents[0].winners, undefined);
    }
});

test('the example prints the ranking', () => {
    const files = ['queries.safetensors', 'documents.safetensors', 'documents.jsonl'];
    const example = join(import.meta.dirname, '../examples/rank.js');
    const printed = execFileSync(process.execPath, [example, ...files.map((f) => join(sample, f))]);
    const lines = printed.toString().trimEnd().split('\n');
    const expected = ranked('ranking.json');
    assert.equal(lines.length, 50 * 4);
    for (const [i, line] of lines.entries()) {
        const [query, place] = [Math.trunc(i / 4), i % 4 - 1];
        if (place < 0) {
            assert.equal(line, `query ${query}`);
            continue;
        }
        const { documents, scores, titles } = expected[query];
        const [first, score, ...words] = line.trim().split(/ +/);
        assert.deepEqual([first, ...words], [`${place + 1}`, `${documents[place]}`, titles[place]]);
        assert.ok(Math.abs(score - scores[place]) < 1e-4);
    }
    assert.match(lines.join('\n'), /\n {3}1 +8\.6901 +7 +elpa-gnuplot-mode\n/);
});
