// The page about the method, opened from disk in a browser without a window: every control, and
// every number beside what the same functions print without a browser.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';

import { launched, opened } from './browser.js';
import { made, maxsim } from './support.js';

const expected = JSON.parse(readFileSync(join(made, 'method.json'), 'utf8'));
const { query, document } = expected.example;
const dash = '–';
const shown = (x) => String(Number(x.toFixed(5)));
const vector = (values) => `[${values.map(shown).join(', ')}]`;

let browser;
let page;
let wrong;

before(async () => {
    browser = await launched();
    ({ page, wrong } = await opened(browser, process.env.MAXSIM_METHOD));
    await page.waitForSelector('body[data-ready]', { timeout: 60_000 });
});

after(async () => {
    await browser?.close();
    assert.deepEqual(wrong, []);
});

/** The cells of a table's body, headings of rows first. */
function body(id) {
    return page.$$eval(`#${id} tbody tr`, (rows) =>
        rows.map((row) => Array.from(row.cells, (cell) => cell.textContent)));
}

function said(id) {
    return page.$eval(`#${id}`, (element) => element.textContent);
}

async function type(name, value) {
    await page.$eval(`#shape [name="${name}"]`, (field, text) => {
        field.value = text;
        field.dispatchEvent(new Event('input', { bubbles: true }));
    }, String(value));
}

test('the example is the one that is computed', async () => {
    const rows = await body('tokens');
    const tokens = [
        ...query.map((token) => ['query', token]), ...document.map((token) => ['document', token]),
    ];
    assert.deepEqual(rows, tokens.map(([side, { word, values }]) =>
        [`${side}: ${word}`, ...values.map(shown)]));
    // The oracle and a third way to compute it.
    const { score, winners } = maxsim(query.map((q) => q.values), document.map((d) => d.values));
    assert.equal(score, expected.forward[0].score);
    assert.deepEqual(winners, expected.backward.winners);
});

for (const scan of expected.forward) {
    test(`tiles of ${scan.tile} tokens, one after the other`, async () => {
        await page.select('#tile', String(scan.tile));
        assert.match(await said('forward-said'), /^Nothing is read yet/);
        for (const [i, step] of scan.steps.entries()) {
            // By mouse, and by keyboard.
            if (i % 2) {
                await page.focus('#forward-next');
                await page.keyboard.press('Enter');
            } else {
                await page.click('#forward-next');
            }
            const [head, ...rows] = await body('forward');
            assert.deepEqual(head.slice(1, -2), document.map(({ word }) => word));
            for (const [s, row] of rows.entries()) {
                const cells = row.slice(1, -2);
                for (const [t, text] of cells.entries()) {
                    const isLive = t >= step.first && t < step.end;
                    assert.equal(text, isLive ? shown(step.similarities[s][t - step.first]) : '');
                }
                assert.deepEqual(row.slice(-2),
                    [shown(step.maxima[s]), document[step.winners[s]].word]);
                const seen = document.slice(0, step.end).map(({ values }) =>
                    values.reduce((sum, x, k) => sum + x * query[s].values[k], 0));
                assert.equal(Math.max(...seen), step.maxima[s]);
            }
            const isLast = i === scan.steps.length - 1;
            const { element_bytes: size, dim } = expected.example;
            const read = (query.length + step.end) * dim * size;
            const moved = (await body('moved')).map((row) => row.slice(1).map(Number));
            assert.deepEqual(moved, [
                [read + (isLast ? 4 : 0), read + query.length * step.end * size],
                [query.length * (step.end - step.first + 1), query.length * step.end],
                [scan.bytes.fused, scan.bytes.with_table],
            ]);
            assert.equal((await page.$$('#forward td.live')).length,
                query.length * (step.end - step.first));
            assert.equal((await page.$$('#forward td.gone')).length, query.length * step.first);
            assert.equal((await page.$$('#forward td.won')).length, query.length);
            assert.match(await said('forward-said'), new RegExp(`^Tile ${i + 1}, `));
        }
        const end = new RegExp(`the score is ${shown(scan.score)}\\.$`);
        assert.match(await said('forward-said'), end);
        assert.equal(await page.$eval('#forward-next', (button) => button.disabled), true);
        await page.click('#forward-back');
        assert.match(await said('forward-said'), new RegExp(`^Tile ${scan.steps.length - 1}, `));
        // The slider, by its keys.
        await page.focus('#forward-step');
        await page.keyboard.press('Home');
        assert.match(await said('forward-said'), /^Nothing is read yet/);
        assert.equal(await page.$eval('#forward-back', (button) => button.disabled), true);
    });
}

test('gradients, step by step', async () => {
    const { backward } = expected;
    const n = query.length;
    const last = n + 1 + backward.rows.length;
    assert.equal(await page.$eval('#backward-step', (slider) => Number(slider.max)), last);
    for (let at = 1; at <= last; at += 1) {
        await page.click('#backward-next');
        const gather = (await body('gather')).slice(1);
        assert.deepEqual(gather, query.map(({ word }, s) => [word,
            document[backward.winners[s]].word, s < at ? vector(backward.queries[s]) : dash]));
        const scatter = (await body('scatter')).slice(1);
        assert.deepEqual(scatter, backward.rows.map((row, i) => [document[row.token].word,
            at > n ? row.sources.map((s) => query[s].word).join(' + ') : dash,
            at > n + 1 + i ? vector(row.gradient) : dash]));
        assert.notEqual(await said('backward-said'), '');
    }
    for (const [s, gradient] of backward.queries.entries()) {
        assert.deepEqual(gradient, document[backward.winners[s]].values);
    }
    for (const { sources, gradient } of backward.rows) {
        const sum = gradient.map((_, k) => sources.reduce((x, s) => x + query[s].values[k], 0));
        assert.deepEqual(gradient, sum);
    }
    await page.focus('#backward-step');
    await page.keyboard.press('Home');
    assert.match(await said('backward-said'), /^The score's gradient is 1/);
});

test('shapes that are typed in', async () => {
    const requests = JSON.parse(readFileSync(join(made, 'shapes.json'), 'utf8'));
    for (const [i, { card, shape: request }] of requests.entries()) {
        await page.select('#shape [name="card"]', card);
        await page.select('#shape [name="element"]', request.element);
        for (const name of ['n_queries', 'query_len', 'n_documents', 'document_len', 'dim']) {
            await type(name, request[name]);
        }
        const costs = expected.shapes[i];
        const table = await body('costs');
        const value = (text) => {
            const [, number, unit] = text.match(/^(\S+) (B|KB|MB|GB|TB|PB|µs|ms|s)\b/);
            const at = ['B', 'KB', 'MB', 'GB', 'TB', 'PB'].indexOf(unit);
            return Number(number) * (at < 0 ? { µs: 1e-3, ms: 1, s: 1e3 }[unit] : 1000 ** at);
        };
        const near = (text, number) =>
            assert.ok(Math.abs(value(text) / number - 1) < 1e-3, `${text}: ${number}`);
        const { bytes } = costs;
        for (const [row, [fused, tabled]] of [
            [bytes.tokens, bytes.tokens], [null, bytes.table], [bytes.fused, bytes.with_table],
            [bytes.winners / 3, bytes.table], [bytes.winners, bytes.table_backward],
            [costs.arithmetic_ms, costs.arithmetic_ms],
            [costs.fused_memory_ms, costs.table_memory_ms], [costs.fused_ms, costs.table_ms],
        ].entries()) {
            if (fused !== null) near(table[row][1], fused);
            near(table[row][2], tabled);
        }
        const { n_queries: a, query_len: b, n_documents: c, document_len: d, dim } = request;
        const size = request.element === 'f32' ? 4 : 2;
        assert.equal(bytes.table, a * b * c * d * size);
        assert.equal(costs.flop, 2 * a * b * c * d * dim);
        const plan = await said('planned');
        assert.ok(plan.includes(` ${costs.plan.name}: tiles of ${costs.plan.query_tile} query `));
        assert.ok((await said('roof-said')).includes(Number(costs.ridge.toPrecision(4))));
        assert.ok((await page.$$('#roofline circle.ours')).length > 20);
        assert.equal((await page.$$('#roofline circle.yours')).length, 1);
    }
});

test('a shape that cannot be is refused in words', async () => {
    await type('dim', 0);
    assert.match(await said('verdict'), /^There is no such call: every field/);
    assert.deepEqual(await body('costs'), []);
    await type('dim', 128);
    await type('n_documents', 1_000_000);
    await type('document_len', 1_000_000);
    assert.match(await said('verdict'), /^There is no such call: /);
    await type('document_len', 1024);
    await type('n_documents', 1000);
    assert.match(await said('verdict'), /^Without the table the limit is /);
});

test('answers are checked', async () => {
    const right = { why: 1, longer: 0, gradient: 2 };
    for (const [name, expectedAnswer] of Object.entries(right)) {
        for (const value of [0, 1, 2]) {
            await page.click(`input[name="${name}"][value="${value}"]`);
            const text = await said(`${name}-said`);
            assert.match(text, value === expectedAnswer ? /^Yes: / : /^No: /);
        }
        await page.click(`input[name="${name}"][value="${expectedAnswer}"]`);
    }
    assert.equal(await said('answered'), '3 of 3 answers are right.');
    await page.click('input[name="why"][value="0"]');
    assert.equal(await said('answered'), '2 of 3 answers are right.');
});

test('every control has a name, and both colour schemes a picture', async () => {
    const unnamed = await page.$$eval('button, input, select', (all) => all
        .filter((field) => !field.labels?.length && !field.textContent.trim())
        .map((field) => field.outerHTML));
    assert.deepEqual(unnamed, []);
    assert.equal(await page.$$eval('h1', (all) => all.length), 1);
    const colours = [];
    for (const value of ['light', 'dark']) {
        await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value }]);
        colours.push(await page.$eval('body', (body) => getComputedStyle(body).backgroundColor));
    }
    assert.notEqual(colours[0], colours[1]);
    // What the guide shows of it, where that is asked for.
    if (process.env.MAXSIM_SCREENSHOT) {
        await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: 'light' }]);
        await page.setViewport({ width: 900, height: 620 });
        await page.select('#tile', '4');
        await page.click('#forward-next');
        await page.click('#forward-next');
        await page.$eval('#tiles', (heading) => heading.scrollIntoView());
        await page.screenshot({ path: process.env.MAXSIM_SCREENSHOT });
    }
});
