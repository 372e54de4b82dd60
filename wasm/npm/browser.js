// Fetches the engine from beside this file.
import init from './engine.js';

await init({ module_or_path: new URL('./engine_bg.wasm', import.meta.url) });

export { Scores, Tokens, rank, rankFiles, score } from './engine.js';
