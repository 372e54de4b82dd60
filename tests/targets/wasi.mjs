// Runs a program of wasm32-wasip1 in node: with this process's arguments, environment and current
// folder. Exits as it does; a trap, which is how a panic ends there, is a failure.
import { readFile } from "node:fs/promises";
import { argv, cwd, env, exit } from "node:process";
import { WASI } from "node:wasi";

const [program, ...args] = argv.slice(2);
const wasi = new WASI({
  version: "preview1",
  args: [program, ...args],
  env,
  preopens: { "/": "/" },
});
// Threads, which this platform has none of and older C libraries for it lack altogether: 52 is
// ENOSYS, which Rust takes for "unsupported".
const threads = {
  pthread_attr_init: () => 0,
  pthread_attr_setstacksize: () => 0,
  pthread_attr_destroy: () => 0,
  pthread_create: () => 52,
  pthread_detach: () => 52,
  pthread_join: () => 52,
};
const module = await WebAssembly.compile(await readFile(program));
const instance = await WebAssembly.instantiate(module, { ...wasi.getImportObject(), env: threads });
try {
  exit(wasi.start(instance));
} catch (error) {
  console.error(`${program}: ${error}`);
  exit(101);
}
