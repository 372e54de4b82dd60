// The README's example prints what its comments say.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';

test("the README's example", () => {
    const readme = readFileSync(new URL('README.md', import.meta.resolve('maxsim-wasm')), 'utf8');
    const [, code] = readme.match(/^```js\n(.*?)^```$/ms);
    const script = join(import.meta.dirname, 'readme-example.js');
    writeFileSync(script, code);
    const printed = execFileSync(process.execPath, [script]).toString().trimEnd().split('\n');
    const said = Array.from(code.matchAll(/console\.log\(.*\); \/\/ (.*)$/gm), ([, words]) =>
        words.replace(/:? max.*$/, ''));
    const plain = printed.map((line) =>
        line.replace(/Array\(\d+\)/, 'Array').replaceAll(/[[\]] ?| (?=\])/g, ''));
    assert.deepEqual(plain, said.map((line) => line.replaceAll(/[[\]]/g, '')));
});

test('the engine is faster than a loop', () => {
    const script = join(import.meta.dirname, '../examples/compare.js');
    const { loop_over_engine: ratio } = JSON.parse(execFileSync(process.execPath, [script, '4']));
    assert.ok(ratio > 2, `${ratio}`);
});
