const buttons = [...document.querySelectorAll("button[data-s]")];
const cells = [...document.querySelectorAll("[data-t]")];
const said = document.getElementById("said");

// Colours the document's tokens from the least to the most, and frames those that are chosen.
function colour(values, framed) {
  const finite = values.filter(Number.isFinite);
  const [least, most] = [Math.min(...finite), Math.max(...finite)];
  for (const cell of cells) {
    const t = Number(cell.dataset.t);
    const heat = most > least ? (values[t] - least) / (most - least) : 0;
    cell.style.setProperty("--heat", Number.isFinite(heat) ? heat : 0);
    cell.classList.toggle("chosen", framed.has(t));
  }
}

function show(s) {
  for (const button of buttons) {
    button.setAttribute("aria-pressed", String(Number(button.dataset.s) === s));
  }
  if (s === null) {
    colour(shares, new Set());
    said.textContent = "Colours: how much of the score each token of the document brings.";
    return;
  }
  colour(similarities[s], new Set([chosen[s]]));
  const word = cells.find((cell) => Number(cell.dataset.t) === chosen[s]);
  const what = word ? word.textContent || word.title : "none";
  said.textContent = `Colours: similarity to this token. It chose: ${what}.`;
}

for (const button of buttons) {
  button.addEventListener("click", () => {
    const is_pressed = button.getAttribute("aria-pressed") === "true";
    show(is_pressed ? null : Number(button.dataset.s));
  });
}
show(null);
