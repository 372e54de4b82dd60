// Starts the engine that is in this file, and shows what it computes.

let example;
let shape;
const measured = JSON.parse(document.getElementById("measured").textContent);

async function begin() {
  const bytes = Uint8Array.from(atob(engineBytes), (c) => c.charCodeAt(0));
  await wasm_bindgen({ module_or_path: bytes });
  shape = wasm_bindgen.shape;
  example = JSON.parse(wasm_bindgen.example());
  showTokens();

  const form = document.getElementById("shape");
  form.elements.card.append(...Object.keys(measured).map((name) => new Option(name)));
  form.addEventListener("input", () => showShape(form));
  form.addEventListener("submit", (event) => event.preventDefault());
  showShape(form);

  const tile = document.getElementById("tile");
  let scan;
  const forward = new Steps("forward", (at) => showForward(scan, at));
  const restart = () => {
    scan = JSON.parse(wasm_bindgen.forward(Number(tile.value)));
    forward.start(scan.steps.length);
  };
  tile.addEventListener("input", restart);
  restart();

  const made = JSON.parse(wasm_bindgen.backward());
  const backward = new Steps("backward", (at) => showBackward(made, at));
  backward.start(made.winners.length + 1 + made.rows.length);
  showQuestions();
  document.body.dataset.ready = "true";
}

begin().catch((error) => {
  const failed = document.getElementById("failed");
  failed.hidden = false;
  failed.textContent = `This page could not start: ${error.message}. `
    + "It needs a browser with WebAssembly.";
});
