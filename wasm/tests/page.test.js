// The page, in a browser without a window.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';

import { serve } from '../examples/serve.js';
import { launched } from './browser.js';
import { ranked, sample } from './support.js';

let browser;
let served;

before(async () => {
    const folder = fileURLToPath(new URL('.', import.meta.resolve('maxsim-wasm')));
    served = await serve({ 'maxsim-wasm': folder, sample });
    browser = await launched();
});

after(async () => {
    await browser?.close();
    served?.server.close();
});

test('the page ranks the sample as the tool does', async () => {
    const page = await browser.newPage();
    const wrong = [];
    page.on('pageerror', (error) => wrong.push(error.message));
    page.on('requestfailed', (request) => wrong.push(request.url()));
    await page.goto(served.url);
    const select = await page.waitForSelector('#queries:not(:disabled)', { timeout: 60_000 });
    const shown = () => page.$$eval('#ranking tr', (rows) =>
        rows.map((row) => Array.from(row.cells, (cell) => cell.textContent)));
    const expected = ranked('ranking.json');
    for (const query of [0, 7, 49]) {
        await select.select(`${query}`);
        const rows = await shown();
        assert.deepEqual(rows.map(([place]) => Number(place)), rows.map((_, i) => i + 1));
        assert.deepEqual(rows.map(([, , name]) => name), expected[query].titles);
        for (const [place, [, score]] of rows.entries()) {
            assert.match(score, /^\d+\.\d{4}$/);
            assert.ok(Math.abs(score - expected[query].scores[place]) < 1e-4);
        }
    }
    const status = await page.$eval('#status', (status) => status.textContent);
    assert.match(status, /^50 queries against 200 documents: \d+ ms$/);
    assert.deepEqual(wrong, []);
});

test('the package loads without a page of its own', async () => {
    const page = await browser.newPage();
    await page.goto(served.url);
    const [score, words] = await page.evaluate(async () => {
        const { Tokens, score } = await import('./maxsim-wasm/browser.js');
        const tokens = Tokens.padded(Float32Array.of(1, 2), 1, 1, 2);
        try {
            Tokens.fromSafetensors(new Uint8Array(1));
        } catch (error) {
            return [score(tokens, tokens).values()[0], error.message];
        }
    });
    assert.deepEqual([score, words], [5, 'too short for a safetensors file']);
});
