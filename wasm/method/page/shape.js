// The shape that the reader types in: bytes, times, the plan, and a place below the roof.

const digits = (x, n = 4) => Number(x.toPrecision(n));
const units = (x, names, base) => {
  let at = 0;
  for (; x >= base && at < names.length - 1; at += 1) x /= base;
  return `${digits(x)} ${names[at]}`;
};
const bytesText = (x) => units(x, ["B", "KB", "MB", "GB", "TB", "PB"], 1000);
const timeText = (ms) => {
  if (ms < 1) return `${digits(ms * 1000)} µs`;
  return ms < 1000 ? `${digits(ms)} ms` : `${digits(ms / 1000)} s`;
};

function showShape(form) {
  const fields = Object.fromEntries(new FormData(form));
  const card = measured[fields.card];
  const request = { element: fields.element };
  for (const name of ["n_queries", "query_len", "n_documents", "document_len", "dim"]) {
    request[name] = Number(fields[name]);
  }
  request.tflop_per_s = card.tflop_per_s[fields.element === "f32" ? "tf32" : "f16"];
  request.tb_per_s = card.tb_per_s;
  const verdict = document.getElementById("verdict");
  const plan = document.getElementById("planned");
  const isWhole = [...form.elements].every((field) => field.validity?.valid ?? true);
  const costs = isWhole ? JSON.parse(shape(JSON.stringify(request)))
    : { error: "every field takes a whole number within its limits" };
  const table = document.getElementById("costs");
  if (costs.error) {
    fill(table, []);
    plan.textContent = "";
    document.getElementById("roofline").replaceChildren();
    document.getElementById("roof-said").textContent = "";
    verdict.textContent = `There is no such call: ${costs.error}.`;
    return;
  }
  const { bytes } = costs;
  const row = (name, ...texts) => [heading(name, "row"), ...texts.map((text) => cell(text))];
  fill(table, [
    row("tokens, read", bytesText(bytes.tokens), bytesText(bytes.tokens)),
    row("table, stored between", "none", bytesText(bytes.table)),
    row("moved in all", bytesText(bytes.fused), bytesText(bytes.with_table)),
    row("kept for gradients", `${bytesText(bytes.winners / 3)} of winners`, bytesText(bytes.table)),
    row("moved more by gradients", bytesText(bytes.winners), bytesText(bytes.table_backward)),
    row("time of the products", timeText(costs.arithmetic_ms), timeText(costs.arithmetic_ms)),
    row("time of the bytes", timeText(costs.fused_memory_ms), timeText(costs.table_memory_ms)),
    row("no less than", timeText(costs.fused_ms), timeText(costs.table_ms)),
  ]);
  const limit = costs.arithmetic_ms >= costs.fused_memory_ms ? "the multipliers" : "memory";
  verdict.textContent = `Without the table the limit is ${limit}, and the call may be `
    + `${digits(costs.table_ms / costs.fused_ms, 3)} times as fast; the table would be `
    + `${digits(bytes.table / bytes.tokens, 3)} times as large as all tokens.`;
  const { name, ...of } = costs.plan;
  plan.textContent = `The library runs ${name}: tiles of ${of.query_tile} query tokens × `
    + `${of.document_tile} document tokens, ${of.stages} stages in shared memory, ${of.threads} `
    + `threads`
    + (of.document_splits > 1 ? `, every document divided into ${of.document_splits}` : "")
    + `. It looked at ${of.n_rejected} other kernels.`;
  showRoof(request, costs, card);
}

function showRoof(request, costs, card) {
  const [left, right, top, bottom] = [60, 700, 20, 370];
  const [low, high, least, most] = [0.25, 8192, 0.5, 1500];
  const x = (value) => left + (right - left) * Math.log(Math.min(Math.max(value, low), high) / low)
    / Math.log(high / low);
  const y = (value) => bottom - (bottom - top)
    * Math.log(Math.min(Math.max(value, least), most) / least) / Math.log(most / least);
  const parts = [];
  const add = (name, attributes, text) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    parts.push(made);
  };
  for (const tick of [1, 4, 16, 64, 256, 1024, 4096]) {
    add("line", { class: "axis", x1: x(tick), x2: x(tick), y1: top, y2: bottom });
    add("text", { x: x(tick), y: bottom + 18, "text-anchor": "middle" }, tick);
  }
  for (const tick of [1, 10, 100, 1000]) {
    add("line", { class: "axis", x1: left, x2: right, y1: y(tick), y2: y(tick) });
    add("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, tick);
  }
  const below = { x: (left + right) / 2, y: bottom + 40, "text-anchor": "middle" };
  add("text", below, "operations for each byte");
  add("text", { x: 4, y: 12 }, "TFLOP/s");
  const peak = request.tflop_per_s;
  const roof = (intensity) => Math.min(intensity * request.tb_per_s, peak);
  const start = Math.max(low, least / request.tb_per_s);
  const corner = `${x(costs.ridge)},${y(peak)}`;
  const path = `M${x(start)},${y(roof(start))} L${corner} L${right},${y(peak)}`;
  add("path", { class: "roof", d: path });
  for (const point of card.points) {
    add("circle", { class: "ours", cx: x(point.intensity), cy: y(point.ours), r: 3.5 });
    if (point.peer === null) continue;
    const [a, b] = [x(point.intensity), y(point.peer)];
    add("path", { class: "peer", d: `M${a - 4},${b - 4} l8,8 m0,-8 l-8,8` });
  }
  const tabled = costs.flop / costs.bytes.with_table;
  add("circle", { class: "yours", cx: x(costs.intensity), cy: y(roof(costs.intensity)), r: 7 });
  add("rect", { class: "tabled", x: x(tabled) - 6, y: y(roof(tabled)) - 6, width: 12, height: 12 });
  document.getElementById("roofline").replaceChildren(...parts);
  const place = (intensity) =>
    `${digits(intensity)} operations a byte, at most ${digits(roof(intensity))} TFLOP/s`;
  document.getElementById("roof-said").textContent = "Your shape without the table (large dot): "
    + `${place(costs.intensity)}. With the table (square): ${place(tabled)}. The corner of the `
    + `roof is at ${digits(costs.ridge)}.`;
}
