// Tables of texts.

// A dotted name may break after its dots, and its pieces after their strokes.
const makeBreakable = (text) => text.split(/(?<=[._/])/).flatMap((part, at) => (at ? [make("wbr"), part] : [part]));

function drawTextTable(figure, picture, context) {
  const body = make("tbody");
  const counts = new Map();
  for (const row of picture.rows) {
    body.append(make("tr", {}, ...row.map(([text, state, note, code], at) => {
      if (state) counts.set(state, (counts.get(state) || 0) + 1);
      const cell = make(at ? "td" : "th", at ? {} : { scope: "row" });
      if (state) cell.append(make("span", { class: `state t-${toneOf(picture, state)}` }, state), " ");
      const found = code ? context.findings.get(decodeName(code)) : undefined;
      cell.append(found ? make("a", { href: `#r${context.number + 1}-f${found[0]}` }, text) : text);
      if (note) cell.append(make("span", { class: "from" }, ...makeBreakable(note)));
      for (const finding of found || []) context.link(finding, () => { cell.tabIndex = -1; cell.scrollIntoView({ block: "center" }); cell.focus({ preventScroll: true }); });
      return cell;
    })));
  }
  const head = make("thead", {}, make("tr", {}, ...picture.columns.map((column) => make("th", { scope: "col" }, column))));
  const legend = makeLegend(picture, counts);
  context.redraws.push(legend.redraw);
  figure.append(legend.list, make("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": picture.title }, make("table", { class: "texts" }, head, body)));
}
