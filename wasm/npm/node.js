// Reads the engine from the file beside this one.
import { readFileSync } from 'node:fs';

import { initSync } from './engine.js';

initSync({ module: readFileSync(new URL('./engine_bg.wasm', import.meta.url)) });

export { Scores, Tokens, rank, rankFiles, score } from './engine.js';
