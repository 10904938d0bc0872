// A job's log: its newest part, then what comes, or only the lines that match a search.

const KEPT_CHARACTERS = 400000;

export function startLog() {
  const panel = document.querySelector("[data-log-url]");
  if (!panel) return () => Promise.resolve();
  const box = panel.querySelector("#log");
  const note = panel.querySelector("#log-note");
  const slot = panel.querySelector("#log-slot");
  const search = panel.querySelector("#log-search");
  let cursor = null;
  let turn = 0;
  let timer = 0;

  function show(text, isWhole) {
    const isAtEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
    const before = isWhole ? "" : box.textContent;
    // It may begin by replacing the line that was unfinished, as progress bars do.
    const whole = text.startsWith("\r") ? before.slice(0, before.lastIndexOf("\n") + 1) + text.slice(1) : before + text;
    const kept = whole.length > KEPT_CHARACTERS ? whole.slice(whole.indexOf("\n", whole.length - KEPT_CHARACTERS) + 1) : whole;
    if (isWhole || kept !== box.textContent) box.textContent = kept;
    if (isWhole || isAtEnd) box.scrollTop = box.scrollHeight;
  }

  function showMatches(answer) {
    const wanted = search.value.toLowerCase();
    const lines = answer.lines.map(({ slot: from, number, text }) => {
      const line = document.createElement("div");
      line.append(`trainer ${from}, line ${number}: `);
      let start = 0;
      for (let at = text.toLowerCase().indexOf(wanted); at >= 0; at = text.toLowerCase().indexOf(wanted, start)) {
        const hit = document.createElement("mark");
        hit.textContent = text.slice(at, at + wanted.length);
        line.append(text.slice(start, at), hit);
        start = at + wanted.length;
      }
      line.append(text.slice(start));
      return line;
    });
    box.replaceChildren(...lines);
    note.textContent = `${answer.lines.length}${answer.has_more ? " or more" : ""} matching line${answer.lines.length === 1 ? "" : "s"}`;
  }

  async function load(isFresh) {
    if (!isFresh && search.value) return;
    const mine = ++turn;
    const query = new URLSearchParams({ slot: slot.value });
    if (search.value) query.set("q", search.value);
    else if (!isFresh && cursor !== null) query.set("cursor", cursor);
    const response = await fetch(`${panel.dataset.logUrl}?${query}`, { signal: AbortSignal.timeout(15000), redirect: "error" });
    if (!response.ok || mine !== turn) return;
    const answer = await response.json();
    if (mine !== turn) return;
    if (search.value) {
      showMatches(answer);
      return;
    }
    const isWhole = isFresh || cursor === null;
    cursor = answer.next_cursor;
    if (isWhole) note.textContent = answer.truncated ? "The newest part; download it for the rest." : "";
    if (isWhole || answer.text) show(answer.text || "Nothing has been written yet.", isWhole || box.textContent === "Nothing has been written yet.");
  }

  slot.addEventListener("change", () => load(true));
  search.addEventListener("input", () => {
    window.clearTimeout(timer);
    timer = window.setTimeout(() => load(true), 250);
  });
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter") event.preventDefault();
  });
  load(true);
  return () => load(false);
}
