// Ranks the documents of a file for the queries of another, both `.safetensors`; with lines of JSON
// beside the documents, by their packages' names.
//
//     node rank.js queries.safetensors documents.safetensors documents.jsonl
import { readFileSync } from 'node:fs';

import { rankFiles } from 'maxsim-wasm';

const [queries, documents, texts] = process.argv.slice(2);
if (documents === undefined) {
    console.error('usage: node rank.js QUERIES.safetensors DOCUMENTS.safetensors [TEXTS.jsonl]');
    process.exit(2);
}
const names = texts === undefined ? [] : packages(texts);
const rankings = rankFiles(readFileSync(queries), readFileSync(documents), 3);
for (const [query, { documents }] of rankings.entries()) {
    console.log(`query ${query}`);
    for (const [place, { document, score }] of documents.entries()) {
        const columns = [`${place + 1}`.padStart(4), score.toFixed(4).padStart(10)];
        columns.push(`${document}`.padStart(8), ` ${names[document] ?? ''}`);
        console.log(columns.join(' ').trimEnd());
    }
}

function packages(path) {
    const lines = readFileSync(path, 'utf8').trimEnd().split('\n');
    return lines.map((line) => JSON.parse(line).package);
}
