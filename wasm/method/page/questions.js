// Three questions, and what there is to say of every answer.

const QUESTIONS = [
  {
    name: "why",
    text: "Why need the table of similarities never be built?",
    answers: [
      ["Similarities may be rounded, so fewer of them are needed.",
        "No: all of them are computed, and none is left out or rounded more than usual."],
      ["Only the largest of a row is used, and the largest so far is all that has to be kept.",
        "Yes: a maximum can be found while its row passes by, with one number in hand."],
      ["The table fits into the memory of new cards.",
        "No: its size is a product of four lengths, and writing and reading it takes time even "
          + "where it fits."],
    ],
    right: 1,
  },
  {
    name: "longer",
    text: "Every document becomes twice as long. What happens to the numbers that a fused kernel "
      + "keeps between reading and scores?",
    answers: [
      ["They stay as many.",
        "Yes: a tile of similarities and a maximum of each query token. There are more tiles, "
          + "one after the other."],
      ["They become twice as many.", "No: that is the table, which grows with the documents."],
      ["They become half as many.", "No: tiles stay as wide as they were."],
    ],
    right: 0,
  },
  {
    name: "gradient",
    text: "Two query tokens chose the same document token. What is its gradient?",
    answers: [
      ["The row of the query token with the larger similarity.",
        "No: the maximum is taken over document tokens. Each query token has a term of its own "
          + "in the sum."],
      ["The larger of the two similarities.",
        "No: a gradient of a dot product is the other vector."],
      ["The sum of both query rows, each times the score's gradient.",
        "Yes: both terms contain it, and its owner adds them in order."],
    ],
    right: 2,
  },
];

function showQuestions() {
  const form = document.getElementById("asked");
  const answered = document.getElementById("answered");
  const right = new Set();
  for (const { name, text, answers, right: expected } of QUESTIONS) {
    const set = document.createElement("fieldset");
    const legend = document.createElement("legend");
    legend.textContent = text;
    const said = document.createElement("p");
    said.setAttribute("role", "status");
    said.id = `${name}-said`;
    set.append(legend, ...answers.map(([answer], i) => {
      const label = document.createElement("label");
      const input = document.createElement("input");
      Object.assign(input, { type: "radio", name, value: String(i) });
      label.append(input, ` ${answer}`);
      return label;
    }), said);
    set.addEventListener("change", ({ target }) => {
      const i = Number(target.value);
      said.textContent = answers[i][1];
      said.className = i === expected ? "" : "wrong";
      if (i === expected) right.add(name); else right.delete(name);
      answered.textContent = `${right.size} of ${QUESTIONS.length} answers are right.`;
    });
    form.append(set);
  }
}
