// The step-throughs: what the oracle gives, one step at a time.

const dash = "–";
const show = (x) => String(Number(x.toFixed(5)));
const words = (side) => example[side].map((token) => token.word);
const vector = (values) => `[${values.map(show).join(", ")}]`;
const list = (names) =>
  names.length < 2 ? names.join("") : `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`;
const count = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;

/** A cell of a table. */
function cell(text, classes = "") {
  const made = document.createElement("td");
  made.textContent = text;
  made.className = classes;
  return made;
}

/** A heading of a row or a column. */
function heading(text, scope) {
  const made = document.createElement("th");
  made.textContent = text;
  made.scope = scope;
  return made;
}

/** Puts rows into a table in place of those that it has; its caption and its head stay. */
function fill(table, rows) {
  const body = table.tBodies[0] ?? table.createTBody();
  body.replaceChildren(...rows.map((cells) => {
    const row = document.createElement("tr");
    row.append(...cells);
    return row;
  }));
}

function showTokens() {
  const of = (side, name) => example[side].map(({ word, values }) =>
    [heading(`${name}: ${word}`, "row"), ...values.map((x) => cell(show(x)))]);
  fill(document.getElementById("tokens"), [...of("query", "query"), ...of("document", "document")]);
}

/** Buttons and a slider that go through the steps from 0 to the last. */
class Steps {
  constructor(name, render) {
    this.at = 0;
    this.last = 0;
    this.render = render;
    this.slider = document.getElementById(`${name}-step`);
    this.back = document.getElementById(`${name}-back`);
    this.next = document.getElementById(`${name}-next`);
    this.back.addEventListener("click", () => this.go(this.at - 1));
    this.next.addEventListener("click", () => this.go(this.at + 1));
    this.slider.addEventListener("input", () => this.go(Number(this.slider.value)));
  }

  start(last) {
    this.last = last;
    this.slider.max = String(last);
    this.go(0);
  }

  go(step) {
    this.at = Math.min(Math.max(step, 0), this.last);
    this.slider.value = String(this.at);
    this.back.disabled = this.at === 0;
    this.next.disabled = this.at === this.last;
    const said = this.render(this.at);
    this.slider.setAttribute("aria-valuetext", said);
  }
}

function showForward(scan, at) {
  const step = at === 0 ? null : scan.steps[at - 1];
  const query = words("query");
  const text = words("document");
  const head = [heading("", "col"), ...text.map((word) => heading(word, "col")),
    heading("largest so far", "col"), heading("of", "col")];
  const rows = query.map((word, s) => [heading(word, "row"),
    ...text.map((_, t) => {
      if (!step || t >= step.end) return cell("");
      const isWinner = step.winners[s] === t;
      if (t < step.first) return cell("", `gone${isWinner ? " won" : ""}`);
      return cell(show(step.similarities[s][t - step.first]), `live${isWinner ? " won" : ""}`);
    }),
    cell(step ? show(step.maxima[s]) : dash, step?.is_new[s] ? "new" : ""),
    cell(step ? text[step.winners[s]] : dash, step?.is_new[s] ? "new" : "")]);
  fill(document.getElementById("forward"), [head, ...rows]);

  const isLast = at === scan.steps.length;
  const { element_bytes: size } = example;
  fill(document.getElementById("moved").tBodies[0].parentElement, [
    [heading("bytes moved", "row"), cell(step ? step.fused_bytes + (isLast ? 4 : 0) : 0),
      cell(step ? step.fused_bytes + step.stored * size : 0)],
    [heading("numbers between reading and scores", "row"), cell(step ? step.kept : 0),
      cell(step ? step.stored : 0)],
    [heading("bytes of the whole call", "row"), cell(scan.bytes.fused),
      cell(scan.bytes.with_table)],
  ]);

  const said = document.getElementById("forward-said");
  if (!step) {
    said.textContent = `Nothing is read yet. ${count(scan.steps.length, "tile")} of up to `
      + `${scan.tile} tokens follow.`;
  } else {
    const better = query.filter((_, s) => step.is_new[s]);
    const changes = better.length
      ? `a larger similarity for ${list(better)}` : "no larger similarity: nothing changes";
    said.textContent = `Tile ${at}, ${list(text.slice(step.first, step.end))}: ${changes}.`
      + (isLast ? ` The maxima are added: the score is ${show(scan.score)}.` : "");
  }
  return said.textContent;
}

function showBackward(made, at) {
  const query = words("query");
  const text = words("document");
  const nQuery = query.length;
  fill(document.getElementById("gather"), [
    [heading("query token", "col"), heading("chose", "col"), heading("its gradient", "col")],
    ...query.map((word, s) => [heading(word, "row"), cell(text[made.winners[s]]),
      cell(s < at ? vector(made.queries[s]) : dash, s === at - 1 ? "new" : "")]),
  ]);
  fill(document.getElementById("scatter"), [
    [heading("document token", "col"), heading("chosen by", "col"), heading("its gradient", "col")],
    ...made.rows.map((row, i) => [heading(text[row.token], "row"),
      cell(at > nQuery ? row.sources.map((s) => query[s]).join(" + ") : dash),
      cell(at > nQuery + 1 + i ? vector(row.gradient) : dash, at === nQuery + 2 + i ? "new" : "")]),
  ]);
  const said = document.getElementById("backward-said");
  if (at === 0) {
    said.textContent = "The score's gradient is 1. The winners are known from the forward pass.";
  } else if (at <= nQuery) {
    const chosen = text[made.winners[at - 1]];
    said.textContent = `${query[at - 1]} chose ${chosen}: its gradient is that row.`;
  } else if (at === nQuery + 1) {
    const pairs = made.sorted.map(([t, s]) => `${text[t]} by ${query[s]}`);
    said.textContent = `Winners, sorted by the document's row: ${pairs.join(", ")}.`;
  } else {
    const row = made.rows[at - nQuery - 2];
    const names = list(row.sources.map((s) => query[s]));
    said.textContent = `${text[row.token]} adds ${names}: ${vector(row.gradient)}.`
      + (at === nQuery + 1 + made.rows.length
        ? ` The other ${count(made.untouched, "token")} were chosen by none: 0.` : "");
  }
  return said.textContent;
}
