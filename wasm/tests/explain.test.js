// The pages that `maxsim explain` writes, opened from disk in a browser without a window.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';

import { launched, opened } from './browser.js';
import { made } from './support.js';

let browser;

before(async () => {
    browser = await launched();
});

after(() => browser?.close());

const expected = JSON.parse(readFileSync(join(made, 'explain.json'), 'utf8'));

/** The document's tokens as they are shown: number, heat, and whether they are framed. */
function cells(page) {
    return page.$$eval('[data-t]', (all) => all.map((cell) => ({
        t: Number(cell.dataset.t),
        heat: Number(cell.style.getPropertyValue('--heat')),
        isChosen: cell.classList.contains('chosen'),
    })));
}

function pressed(page) {
    return page.$$eval('button[aria-pressed="true"]', (all) => all.map((b) => Number(b.dataset.s)));
}

for (const name of ['explain.html', 'explain-image.html']) {
    test(`${name} shows what each token of the query chose`, async () => {
        const { page, wrong } = await opened(browser, join(made, name));
        const buttons = await page.$$('button[data-s]');
        assert.equal(buttons.length, expected.matches.length);
        assert.deepEqual(await pressed(page), []);
        for (const [s, match] of expected.matches.entries()) {
            // By mouse, and by keyboard.
            if (s % 2) {
                await buttons[s].click();
            } else {
                await buttons[s].focus();
                await page.keyboard.press('Enter');
            }
            assert.deepEqual(await pressed(page), [s]);
            const row = expected.similarities[s];
            const [least, most] = [Math.min(...row), Math.max(...row)];
            const shown = await cells(page);
            assert.equal(shown.length, expected.document_tokens.length);
            for (const { t, heat, isChosen } of shown) {
                assert.equal(isChosen, expected.document_tokens[t].token === match.chosen);
                assert.ok(Math.abs(heat - (row[t] - least) / (most - least)) < 1e-3);
            }
        }
        // Pressed again, it shows shares of the score.
        await buttons[expected.matches.length - 1].click();
        assert.deepEqual(await pressed(page), []);
        const shares = expected.document_tokens.map(({ token }) => expected.matches
            .reduce((sum, of) => sum + (of.chosen === token ? of.similarity : 0), 0));
        for (const { t, heat, isChosen } of await cells(page)) {
            assert.ok(!isChosen && Math.abs(heat - shares[t] / Math.max(...shares)) < 1e-3);
        }
        assert.deepEqual(wrong, []);
    });
}

test('the table has the matches', async () => {
    const { page } = await opened(browser, join(made, 'explain.html'));
    const rows = await page.$$eval('table tr', (all) =>
        all.slice(1).map((row) => Array.from(row.cells, (cell) => cell.textContent.trim())));
    assert.deepEqual(rows, expected.matches.map(({ token, similarity, chosen }) =>
        [`<q${token}>`, similarity.toFixed(4), `d&${chosen}`, `${chosen}`]));
});

test('patches lie above their places of the picture', async () => {
    const { page } = await opened(browser, join(made, 'explain-image.html'));
    const [figure, patches] = await page.evaluate(() => {
        const place = (cell) => {
            const { left, top, width, height } = cell.getBoundingClientRect();
            return [left, top, width, height];
        };
        const patches = [...document.querySelectorAll('.patches i')];
        return [place(document.querySelector('figure')), patches.map(place)];
    });
    // Ten lines of ten, from the third token on.
    assert.equal(patches.length, 100);
    for (const [i, [left, top, width, height]] of patches.entries()) {
        assert.ok(Math.abs(left - figure[0] - (figure[2] / 10) * (i % 10)) < 1);
        assert.ok(Math.abs(top - figure[1] - (figure[3] / 10) * Math.floor(i / 10)) < 1);
        assert.ok(Math.abs(width - figure[2] / 10) < 1 && Math.abs(height - figure[3] / 10) < 1);
    }
});
