// What is wrong is an Error that says so, and the engine works on.
import assert from 'node:assert/strict';
import { after, test } from 'node:test';

import { Scores, Tokens, rank, rankFiles, score } from 'maxsim-wasm';

import { bytes, sample } from './support.js';

const two = () => Tokens.padded(Float32Array.of(1, 0, 0, 1), 2, 1, 2);

/** Calls that must fail, with what they say. */
function fails(calls) {
    for (const [call, words] of calls) {
        assert.throws(call, (error) => {
            assert.ok(error instanceof Error, `${error}`);
            assert.ok(!(error instanceof WebAssembly.RuntimeError), `${error.stack}`);
            assert.match(error.message, words);
            return true;
        });
    }
}

after(() => {
    assert.deepEqual(Array.from(score(two(), two()).values()), [1, 0, 0, 1]);
});

test('sizes that do not add up', () => {
    const data = new Float32Array(8);
    fails([
        [() => Tokens.padded(data, 2, 2, 3), /data: expected 12 elements \(4 rows of 3\), found 8/],
        [() => Tokens.padded(data, 2, 2, 0), /dim: expected 1 to 8192, found 0/],
        [() => Tokens.padded(data, 4, 2, 1, { lengths: [1] }), /lengths: expected 4 entries/],
        [() => Tokens.padded(data, 4, 2, 1, { lengths: [1, 2, 3, 0] }), /lengths\[2\].* 3/],
        [() => Tokens.padded(data, 4, 2, 1, { mask: new Uint8Array(3) }), /mask: expected 8/],
        [() => Tokens.packed(data, 3, [0, 1]), /data: expected whole rows of 3 elements, found 8/],
        [() => Tokens.packed(data, 0, [0, 1]), /data: expected whole rows of 0/],
        [() => Tokens.packed(data, 2, []), /offsets: expected number of items \+ 1 entries/],
        [() => Tokens.packed(data, 2, [0, 5]), /offsets\[1\].* 5/],
        [() => Tokens.packed(data, 2, [0, 3, 2]), /offsets\[2\].* 2/],
        [() => Tokens.packed(data, 2, [-1, 3]), /offsets\[0\].* -1/],
        [() => Tokens.packed(data, 2, [0, 2 ** 62]), /offsets\[1\]: expected a whole/],
        [() => Tokens.packed(data, 2, BigInt64Array.of(0n, 2n ** 62n)), /offsets\[1\]/],
        [() => two().setWeights(new Float32Array(3)), /weights: expected 2 entries .* found 3/],
        [() => score(two(), Tokens.padded(data, 1, 2, 4)), /documents: expected dim 2 like the q/],
    ]);
});

test('values of other types', () => {
    const data = new Float32Array(4);
    const tokens = two();
    fails([
        [() => Tokens.padded([1, 2, 3, 4], 2, 1, 2), /data: expected Float32Array, .* an array/],
        [() => Tokens.padded(new Float64Array(4), 2, 1, 2), /data: .*found Float64Array/],
        [() => Tokens.padded(undefined, 2, 1, 2), /data: .*found undefined/],
        [() => Tokens.padded(new DataView(new ArrayBuffer(4)), 2, 1, 2), /data: .*found DataView/],
        [() => Tokens.padded(new Uint16Array(4), 2, 1, 2), /type: .* say type: 'f16' or/],
        [() => Tokens.padded(new Uint16Array(4), 2, 1, 2, { type: 'f32' }), /type: .*found 'f32'/],
        [() => Tokens.padded(data, 2, 1, 2, { type: 'f16' }), /type: .*data is Float32Array/],
        [() => Tokens.padded(new Int8Array(4), 2, 1, 2), /scales: INT8 codes need the scale/],
        [() => Tokens.padded(data, 2, 1, 2, { scales: data }), /scales: INT8 codes alone/],
        [() => Tokens.padded(data, '2', 1, 2), /count: expected a whole number .* a string/],
        [() => Tokens.padded(data, 2.5, 1, 2), /count: .*found 2\.5/],
        [() => Tokens.padded(data, -2, 1, 2), /count: .*found -2/],
        [() => Tokens.padded(data, NaN, 1, 2), /count: .*found NaN/],
        [() => Tokens.padded(data, 2n, 1, 2), /count: .*found a bigint/],
        [() => Tokens.padded(data, 2, 1, 2, 7), /options: expected an object, found a number/],
        [() => Tokens.padded(data, 2, 1, 2, [7]), /options: .*found an array/],
        [() => Tokens.padded(data, 2, 1, 2, { length: [1] }), /no such option: length; .*lengths/],
        [() => Tokens.packed(data, 2, [0, 1], { lengths: [1] }), /no such option: lengths/],
        [() => Tokens.packed(data, 2, [0, 'a']), /offsets\[1\]: .*a string/],
        [() => Tokens.packed(data, 2, [0, , 2]), /offsets\[1\]: .*undefined/],
        [() => Tokens.packed(data, 2, data), /offsets: expected Int32Array.* Float32Array/],
        [() => tokens.setWeights([1, 2]), /weights: expected Float32Array, found an array/],
        [() => tokens.quantize('int4'), /format: expected 'int8' or .*found 'int4'/],
        [() => tokens.quantize('int8', 8), /scales: .*found a number/],
        [() => score(tokens, data), /expected instance of Tokens/],
        [() => score(tokens), /expected instance of Tokens/],
        [() => score({ __wbg_ptr: 8 }, tokens), /expected instance of Tokens/],
        [() => score(tokens, tokens, { winners: 1 }), /winners: expected true or false, found a/],
        [() => score(tokens, tokens, { get winners() { throw new Error(); } }), /winners: reading/],
        [() => score(tokens, tokens, { pairing: {} }), /pairing: expected \{ ownCandidates \}/],
        [() => score(tokens, tokens, { pairing: { k: 1 } }), /pairing: expected/],
        [() => rank(tokens, tokens), /k: expected a whole number .*undefined/],
        [() => new Tokens(), /./],
        [() => Scores.prototype.values.call({}), /./],
    ]);
});

test('numbers that do not go together', () => {
    const tokens = two();
    const codes = (...codes) => Tokens.padded(Int8Array.of(...codes), 2, 1, 2,
        { scales: Float32Array.of(1, 1) });
    const pairing = (pairing) => () => score(tokens, tokens, { pairing });
    fails([
        [() => codes(1, 2, -128, 4), /data: row 1 has the code -128; int8 codes go from -127/],
        [() => score(tokens, codes(1, 2, 3, 4)), /f32.*int8/],
        [() => codes(1, 2, 3, 4).quantize('int8'), /compressing int8 tokens to int8/],
        [() => Tokens.padded(new Int8Array(4), 2, 1, 2, { scales: new Float32Array(1) }), /scales/],
        [() => score(codes(1, 2, 3, 4), Tokens.padded(new Int8Array(4), 2, 1, 2,
            { scales: Float32Array.of(1, -1) })), /scale/],
        [pairing({ ownCandidates: 3 }), /documents: expected 2 queries × 3 own candidates/],
        [pairing({ candidates: [0, 1, 2], k: 2 }), /candidate ids: expected a multiple of k = 2/],
        [pairing({ candidates: [0, 2], k: 1 }), /candidate ids/],
        [pairing({ queries: [0, 1], documents: [0] }), /document_ids: expected 2/],
        [pairing({ queries: [2], documents: [0] }), /query_ids/],
        [pairing({ queries: [-1], documents: [0] }), /query_ids/],
        [() => score(tokens, tokens).tokenRange(4), /score: expected a number below 4, found 4/],
    ]);
    const weighted = two();
    weighted.setMeanWeights();
    fails([[() => score(tokens, weighted), /weights are those of query tokens/]]);
});

test('files that are broken', () => {
    const file = bytes(sample, 'queries.safetensors');
    for (const length of [0, 7, 8, 100, file.length - 1]) {
        assert.throws(() => Tokens.fromSafetensors(file.subarray(0, length)), Error);
    }
    fails([
        [() => Tokens.fromSafetensors(file.subarray(0, 5)), /too short for a safetensors file/],
        [() => Tokens.fromSafetensors(file.buffer), /bytes: expected Uint8Array, found an object/],
        [() => Tokens.fromNpy(file), /./],
        [() => Tokens.fromSafetensors(file, { tensor: 'others' }), /others/],
        [() => Tokens.fromSafetensors(file, { ignore: 'offsets' }), /ignore: expected an array/],
        [() => Tokens.fromSafetensors(file, { trailingZeros: 'skip' }), /'pad' or 'tokens'/],
        [() => rankFiles(file, new Uint8Array(3), 1), /too short/],
    ]);
    // Any byte of the header, changed.
    const header = 8 + Number(new DataView(file.buffer).getBigUint64(0, true));
    for (let place = 0; place < header; place += 1) {
        const changed = file.slice();
        changed[place] ^= 0x15;
        try {
            Tokens.fromSafetensors(changed).free();
        } catch (error) {
            assert.ok(!(error instanceof WebAssembly.RuntimeError), `${place}: ${error.stack}`);
        }
    }
});

test('detached and shared buffers', () => {
    const data = Float32Array.of(1, 0, 0, 1);
    structuredClone(data.buffer, { transfer: [data.buffer] });
    fails([[() => Tokens.padded(data, 2, 1, 2), /data: expected 4 elements .*found 0 elements/]]);
    const bytes = new Uint8Array(8);
    structuredClone(bytes.buffer, { transfer: [bytes.buffer] });
    fails([[() => Tokens.fromSafetensors(bytes), /too short/]]);
    const shared = new Float32Array(new SharedArrayBuffer(16));
    shared.set([1, 0, 0, 1]);
    assert.deepEqual(Array.from(Tokens.padded(shared, 2, 1, 2).data()), [1, 0, 0, 1]);
});

test('sizes beyond memory', () => {
    const none = new Float32Array(0);
    fails([
        [() => Tokens.padded(none, 2 ** 31, 0, 8), /number of items|memory/],
        [() => Tokens.padded(none, 2 ** 31 - 2, 0, 8), /memory/],
        [() => Tokens.padded(none, 2 ** 29, 1, 8), /expected 4294967296 elements|memory/],
        [() => Tokens.padded(none, 2 ** 40, 2 ** 40, 8), /memory/],
    ]);
    // 2³² scores, whose number is 0 in 32 bits.
    const many = Tokens.padded(new Float32Array(2 ** 16), 2 ** 16, 1, 1);
    fails([[() => score(many, many), /number of pairs/]]);
    // Winners that take more than there is.
    const long = Tokens.padded(new Float32Array(2 ** 15), 1, 2 ** 15, 1);
    fails([[() => score(long, many, { winners: true }), /memory/]]);
});

test('freed objects say so, as often as they are used', () => {
    const tokens = two();
    const scores = score(tokens, tokens);
    scores.free();
    tokens.free();
    const freed = /the object has been freed/;
    for (let time = 0; time < 5000; time += 1) {
        assert.throws(() => scores.values(), freed);
        assert.throws(() => score(tokens, tokens), freed);
        assert.throws(() => Tokens.padded(0, 1, 1, 1), /data/);
    }
    scores.free();
    fails([
        [() => tokens.count, freed],
        [() => tokens.setMeanWeights(), freed],
        [() => scores.topK(1), freed],
        // While it is in use, nothing can free it.
        [() => {
            const used = two();
            score(used, used, { get winners() { used.free(); return true; } });
        }, /./],
    ]);
});
