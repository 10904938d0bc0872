// The command palette: pages, choices of the menu and jobs, found by typing and chosen by keys.
// A combobox with a listbox, as the ARIA practices describe them.

const NUM_JOBS = 8;
const WAIT_MS = 200;

function pages() {
  const links = document.querySelectorAll(".nav a, .menu-list a, #palette-pages a, .foot a");
  return [...links].map((link) => ({ label: link.textContent.trim(), hint: "page", address: link.href }));
}

function actions(tell) {
  return [...document.querySelectorAll(".menu-choice button")].map((button) => {
    const group = document.getElementById(button.parentElement.getAttribute("aria-labelledby")).textContent;
    const label = `${group}: ${button.textContent}`;
    const isChosen = button.getAttribute("aria-pressed") === "true";
    return {
      label, hint: isChosen ? "chosen now" : "action",
      run: () => {
        button.click();
        tell(label);
      },
    };
  });
}

function matches(entry, text) {
  const label = entry.label.toLowerCase();
  return text.toLowerCase().split(/\s+/).every((word) => label.includes(word));
}

function isNumber(text) {
  return /^#?\d{1,18}$/.test(text);
}

export function startPalette(tell) {
  const dialog = document.getElementById("palette");
  if (!dialog) return;
  const opener = document.getElementById("palette-open");
  const input = document.getElementById("palette-input");
  const list = document.getElementById("palette-list");
  const note = document.getElementById("palette-note");
  let known = [];
  let jobs = [];
  let shown = [];
  let active = 0;
  let timer = 0;
  let request = new AbortController();

  function mark(place) {
    active = place;
    const options = [...list.children];
    for (const [at, option] of options.entries()) option.setAttribute("aria-selected", at === place);
    if (!options.length) input.removeAttribute("aria-activedescendant");
    else input.setAttribute("aria-activedescendant", options[place].id);
    options[place]?.scrollIntoView({ block: "nearest" });
  }

  function option(entry, place) {
    const element = document.createElement("div");
    element.id = `palette-option-${place}`;
    element.setAttribute("role", "option");
    const label = document.createElement("span");
    label.textContent = entry.label;
    const hint = document.createElement("span");
    hint.className = "note";
    hint.textContent = entry.hint;
    element.append(label, hint);
    element.addEventListener("pointermove", () => active !== place && mark(place));
    element.addEventListener("click", (event) => choose(entry, event));
    return element;
  }

  // With Ctrl or ⌘, as of a link, in a tab of its own.
  function choose(entry, event) {
    dialog.close();
    if (!entry.address) entry.run();
    else if (event.ctrlKey || event.metaKey) window.open(entry.address, "_blank", "noopener");
    else window.location.assign(entry.address);
  }

  function toJob(number, label, hint) {
    return { label, hint, address: `${dialog.dataset.pageUrl}${number}/` };
  }

  // What the list of jobs does not bring: a number further down, and more than a few.
  function leads(text) {
    if (!text) return [];
    const number = text.replace("#", "");
    const isListed = jobs.some((job) => job.label.startsWith(`#${number} `));
    const all = { label: `Show all jobs with “${text}”`, hint: "list", address: `${dialog.dataset.pageUrl}?${new URLSearchParams({ q: text })}` };
    return isNumber(text) && !isListed ? [toJob(number, `Go to job #${number}`, "job"), all] : [all];
  }

  function show(place) {
    const text = input.value.trim();
    shown = [...known, ...jobs].filter((entry) => matches(entry, text));
    shown.push(...leads(text));
    list.replaceChildren(...shown.map(option));
    mark(Math.min(place, shown.length - 1));
  }

  async function search(text) {
    const query = new URLSearchParams({ q: text, fields: "id,name,status", page_size: NUM_JOBS });
    const signal = AbortSignal.any([request.signal, AbortSignal.timeout(15000)]);
    try {
      const response = await fetch(`${dialog.dataset.jobsUrl}?${query}`, { signal, redirect: "error" });
      if (!response.ok) throw new Error(response.statusText);
      const { results } = await response.json();
      jobs = results.map(({ id, name, status }) => toJob(id, `#${id} ${name}`, status));
      note.textContent = jobs.length === 1 ? "1 job found" : `${jobs.length === NUM_JOBS ? "The newest " : ""}${jobs.length} jobs found`;
      show(active);
    } catch {
      if (!request.signal.aborted) note.textContent = "Jobs cannot be searched now.";
    }
  }

  function typed() {
    window.clearTimeout(timer);
    request.abort();
    request = new AbortController();
    const text = input.value.trim();
    if (!text) jobs = [];
    note.textContent = text ? "Searching jobs…" : "Type a word, or a job’s name or number.";
    show(0);
    if (text) timer = window.setTimeout(() => search(text), WAIT_MS);
  }

  function open() {
    if (dialog.open) return;
    known = [...pages(), ...actions(tell)];
    input.value = "";
    dialog.showModal();
    typed();
  }

  opener.hidden = false;
  if (/Mac|iPhone|iPad/.test(navigator.platform)) opener.querySelector("kbd").textContent = "⌘K";
  opener.addEventListener("click", open);
  document.addEventListener("keydown", (event) => {
    if (!(event.ctrlKey || event.metaKey) || event.altKey || event.shiftKey || event.key.toLowerCase() !== "k") return;
    event.preventDefault();
    open();
  });
  input.addEventListener("input", typed);
  input.addEventListener("keydown", (event) => {
    if (event.isComposing || !shown.length) return;
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) mark((active + step + shown.length) % shown.length);
    else if (event.key === "Enter") choose(shown[active], event);
    else return;
    event.preventDefault();
  });
  dialog.addEventListener("mousedown", (event) => {
    if (event.target !== input) event.preventDefault(); // the input keeps the focus
    if (event.target === dialog) dialog.close();
  });
  dialog.addEventListener("close", () => {
    window.clearTimeout(timer);
    request.abort();
  });
}
