// Times the engine beside a plain loop over the same numbers, in turns, and prints medians as JSON:
// one query of 32 tokens against documents of 300, dim 128.
//
//     node compare.js [DOCUMENTS]
import { Tokens, score } from 'maxsim-wasm';

const [dim, queryLength, length, runs] = [128, 32, 300, 9];
const count = Number(process.argv[2] ?? 100);

const random = (n) => Float32Array.from({ length: n }, () => Math.random() - 0.5);
const query = random(queryLength * dim);
const documents = random(count * length * dim);

function loop() {
    const scores = new Float32Array(count);
    for (let d = 0; d < count; d += 1) {
        let score = 0;
        for (let s = 0; s < query.length; s += dim) {
            let most = -Infinity;
            for (let t = d * length * dim; t < (d + 1) * length * dim; t += dim) {
                let similarity = 0;
                for (let i = 0; i < dim; i += 1) similarity += query[s + i] * documents[t + i];
                if (similarity > most) most = similarity;
            }
            score += most;
        }
        scores[d] = score;
    }
    return scores;
}

const held = [
    Tokens.padded(query, 1, queryLength, dim),
    Tokens.padded(documents, count, length, dim),
];
const codes = held.map((tokens) => tokens.quantize('int8'));

function engine([queries, documents]) {
    const scores = score(queries, documents);
    const values = scores.values();
    scores.free();
    return values;
}

const ways = { loop, engine: () => engine(held), int8: () => engine(codes) };
const [expected, found] = [loop(), engine(held)];
const wrong = expected.findIndex((score, d) => Math.abs(score - found[d]) > 1e-3);
if (wrong !== -1) throw new Error(`document ${wrong}: ${found[wrong]} is not ${expected[wrong]}`);

const times = Object.fromEntries(Object.keys(ways).map((name) => [name, []]));
for (let run = 0; run <= runs; run += 1) {
    for (const [name, way] of Object.entries(ways)) {
        // Processor time: other programs may have the machine, too.
        const before = process.cpuUsage().user;
        way();
        // The first run is compiled while it runs.
        if (run > 0) times[name].push((process.cpuUsage().user - before) / 1000);
    }
}
const median = (name) => times[name].toSorted((a, b) => a - b)[runs >> 1];
const rounded = (number) => Number(number.toPrecision(3));
console.log(JSON.stringify({
    shape: `1 of ${queryLength} x ${count} x ${length}, dim ${dim}`,
    node: process.version,
    runs,
    loop_ms: rounded(median('loop')),
    engine_ms: rounded(median('engine')),
    int8_ms: rounded(median('int8')),
    loop_over_engine: rounded(median('loop') / median('engine')),
    loop_over_int8: rounded(median('loop') / median('int8')),
}));
