// Draw every picture when it comes near the window, and link findings with pictures.

const DRAWERS = { heat: drawHeatMap, curves: drawCurves, histogram: drawHistogram, text: drawTextTable, none: () => {} };
const redraws = [];
const waiting = new Map();

function listNames(picture) {
  const names = new Set();
  const take = (code) => { if (code && code.length) names.add(decodeName(code)); };
  if (picture.kind === "heat") {
    picture.cells.forEach((row) => {
      const read = (cells) => { for (let at = 0; at < cells.length; at++) { names.add(cells.name(at)); const members = cells.members(at); if (members) read(members); } };
      read(readCells(row, picture.columns, []));
    });
  } else if (picture.series) picture.series.forEach((series) => (series.keys || []).forEach(take));
  else if (picture.kind === "text") picture.rows.forEach((row) => row.forEach((cell) => take(cell[3] || null)));
  return names;
}

document.querySelectorAll(".report").forEach((article) => {
  const number = Number(article.dataset.report);
  const report = data.reports[number];
  if (!report) return;
  const findings = indexFindings(report);
  article.querySelectorAll("figure.picture").forEach((figure) => {
    const picture = report.pictures[Number(figure.dataset.picture)];
    const targets = new Map();
    const context = { report, number, findings, redraws, link: (finding, show) => { if (!targets.has(finding)) targets.set(finding, show); } };
    const start = () => {
      if (!waiting.has(figure)) return;
      waiting.delete(figure);
      DRAWERS[picture.kind](figure, picture, context);
      if (picture.kind !== "none") figure.append(makeSaveButton(figure, picture.title));
      figure.dataset.drawn = "yes";
    };
    waiting.set(figure, start);
    const numbers = new Set();
    const names = findings.size ? listNames(picture) : new Set();
    for (const [name, found] of findings) if (names.has(name)) found.forEach((finding) => numbers.add(finding));
    // A finding that the picture shows as a whole leads to it; nothing in it leads back, so a line below its caption does.
    const first = new Map(); // code → its first finding
    report.findings.forEach(({ code }, at) => {
      const id = `r${number + 1}-f${at}`;
      if (!picture.codes?.includes(code) || numbers.has(at) || !document.getElementById(id)) return;
      numbers.add(at);
      if (!first.has(code)) first.set(code, make("a", { href: `#${id}` }, code));
    });
    if (first.size) figure.querySelector("figcaption").append(make("p", { class: "findings" }, "Findings:", ...first.values()));
    for (const finding of numbers) {
      const element = document.getElementById(`r${number + 1}-f${finding}`);
      if (!element) continue;
      let line = element.querySelector(".shows");
      if (!line) element.append((line = make("p", { class: "shows" })));
      const link = make("a", { href: `#${figure.id}` }, `▦ ${picture.title}`);
      link.addEventListener("click", (event) => {
        event.preventDefault();
        start();
        const show = targets.get(finding);
        if (show) show(); else figure.scrollIntoView();
      });
      line.append(link);
    }
  });
});

function redrawAll() { redraws.forEach((redraw) => redraw()); }
function drawWaiting() { [...waiting.values()].forEach((start) => start()); }

const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) { watcher.unobserve(entry.target); waiting.get(entry.target)?.(); }
}, { rootMargin: "600px" });
[...waiting.keys()].forEach((figure) => watcher.observe(figure));

const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const button = document.getElementById("scheme");
function setScheme(scheme) {
  root.dataset.scheme = scheme;
  button.textContent = scheme === "dark" ? "Light" : "Dark";
  redrawAll();
}
setScheme(prefersDark.matches ? "dark" : "light");
prefersDark.addEventListener("change", () => setScheme(prefersDark.matches ? "dark" : "light"));
button.hidden = false;
button.addEventListener("click", () => setScheme(root.dataset.scheme === "dark" ? "light" : "dark"));

let resizing = 0;
addEventListener("resize", () => { cancelAnimationFrame(resizing); resizing = requestAnimationFrame(redrawAll); });
addEventListener("scroll", hideTip, { passive: true });
// Paper is light, everything is on it, and its pictures are as wide as a sheet.
let schemeBefore = "light";
addEventListener("beforeprint", () => { schemeBefore = root.dataset.scheme; printing = true; root.dataset.paper = "yes"; drawWaiting(); setScheme("light"); });
addEventListener("afterprint", () => { printing = false; delete root.dataset.paper; setScheme(schemeBefore); });

function followHash() {
  const finding = location.hash.match(/^#r(\d+)-f(\d+)$/);
  if (finding) goToFinding(Number(finding[1]) - 1, Number(finding[2]));
}
addEventListener("hashchange", followHash);
followHash();
