// What the tests share: files, random vectors, and the sum of maxima in f64.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';

/** The folder of the tool's sample. */
export const sample = needed('MAXSIM_SAMPLE');

/** The folder of what the tool makes of the sample. */
export const made = needed('MAXSIM_MADE');

function needed(variable) {
    const value = process.env[variable];
    if (value === undefined) throw new Error(`${variable} is not set; run check.sh`);
    return value;
}

/** Reads the bytes of a file. */
export function bytes(folder, name) {
    return new Uint8Array(readFileSync(join(folder, name)));
}

/** Reads a ranking that the tool wrote: per query its documents, scores and winners. */
export function ranked(name) {
    return JSON.parse(readFileSync(join(made, name), 'utf8')).queries;
}

/** Numbers from -1 to 1, the same for each seed. */
export function random(n, seed) {
    let state = seed >>> 0;
    return Float32Array.from({ length: n }, () => {
        state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
        return state / 2 ** 31 - 1;
    });
}

/** Rows of a matrix, as arrays. */
export function rows(matrix, dim, range) {
    const numbers = [];
    for (let row = range[0]; row < range[1]; row += 1) {
        numbers.push(Array.from(matrix.subarray(row * dim, (row + 1) * dim)));
    }
    return numbers;
}

/** The score of a query against a document, and the winners. */
export function maxsim(query, document) {
    const winners = query.map((q) => {
        let best = -1;
        let most = -Infinity;
        for (const [t, d] of document.entries()) {
            const similarity = q.reduce((sum, x, i) => sum + x * d[i], 0);
            if (similarity > most) [best, most] = [t, similarity];
        }
        return { best, most };
    });
    return {
        score: winners.reduce((sum, { most }) => sum + (most === -Infinity ? 0 : most), 0),
        winners: winners.map(({ best }) => best),
    };
}

/** The bits of the bf16 or f16 numbers nearest to zero beside f32 ones, and those numbers. */
export function halves(numbers, type) {
    const bits = new Uint16Array(numbers.length);
    const exact = new Float32Array(numbers.length);
    const word = new Uint32Array(1);
    const float = new Float32Array(word.buffer);
    for (const [i, number] of numbers.entries()) {
        float[0] = number;
        if (type === 'bf16') {
            bits[i] = word[0] >>> 16;
            word[0] &= 0xffff0000;
        } else {
            // Of numbers that f16 has as normal ones: 13 fraction bits fewer, another bias.
            word[0] = Math.abs(number) < 2 ** -14 ? 0 : word[0] & 0xffffe000;
            const exponent = (word[0] >>> 23) & 0xff;
            const [sign, fraction] = [(word[0] >>> 16) & 0x8000, (word[0] >>> 13) & 0x3ff];
            bits[i] = exponent === 0 ? sign : sign | ((exponent - 112) << 10) | fraction;
        }
        exact[i] = float[0];
    }
    return { bits, exact };
}
