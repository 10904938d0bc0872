// A job's log: windows of lines that follow its end or go back in it, and what a search finds.

import { clockText } from "./times.js";

const KEPT_LINES = 5000;
const WAITING_LINES = 5000;
// Of a line that goes on for ever, its newest characters.
const KEPT_CHARACTERS = 10000;
const UNREAD = "The log cannot be read now.";
const LEVELS = ["debug", "info", "warning", "error"];
const STOPS = {
  matches: "There may be more.",
  bytes: "The search stopped at its size limit.",
  time: "The search stopped at its time limit.",
};

function element(name, className, text = "") {
  const made = document.createElement(name);
  made.className = className;
  made.textContent = text;
  return made;
}

// One line; of a line that goes on, `data-continues` says how it joins the one before it.
function row(line) {
  const made = element("div", "log-line");
  Object.assign(made.dataset, { slot: line.slot, offset: line.offset, level: line.level });
  if (line.continues) made.dataset.continues = line.replaces ? "replaces" : "adds";
  const time = element("time", "", clockText(Date.parse(line.at)));
  time.dateTime = line.at;
  made.append(time, element("span", "log-text", line.text));
  return made;
}

function join(row, rest) {
  const text = row.querySelector(".log-text");
  const added = rest.querySelector(".log-text").textContent;
  const whole = rest.dataset.continues === "replaces" ? added : text.textContent + added;
  text.textContent = whole.slice(-KEPT_CHARACTERS);
  rest.remove();
}

function hasLevel(level, wanted) {
  return wanted === "output" || level === "output" ? level === wanted : LEVELS.indexOf(level) >= LEVELS.indexOf(wanted);
}

function marked(text, wanted) {
  if (!wanted) return [text];
  const literally = wanted.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&");
  const parts = text.split(new RegExp(`(${literally})`, "gi")); // every other part is a match
  return parts.map((part, at) => (at % 2 ? element("mark", "", part) : part));
}

export function startLog() {
  const panel = document.querySelector("[data-log-url]");
  if (!panel) return () => Promise.resolve();
  const [box, note, slot, level, search, times, pause] = ["log", "log-note", "log-slot", "log-level", "log-search", "log-times", "log-pause"]
    .map((id) => document.getElementById(id));
  // What the box shows: the end as it grows ("end"), another place ("place"), matches ("search"), or
  // all lines of a level as they come ("level").
  let mode = "";
  let isPaused = false;
  let isPausedByScroll = false;
  let isFollowing = false;
  let waiting = [];
  let nextCursor = 0;
  let turn = 0;
  let timer = 0;
  // What to show once the log can be read again; null while it is.
  let unread = null;
  // Of each trainer, whether the newest line is shown, and so is what goes on with it.
  let isShown = new Map();

  const hasEnded = () => document.querySelector("[data-ended]") !== null;
  const isGrowing = () => mode === "end" || mode === "level";
  const numWaiting = () => waiting.reduce((sum, { lines }) => sum + lines.filter((line) => !line.continues).length, 0);
  const isAtEnd = () => box.scrollHeight - box.scrollTop - box.clientHeight < 40;

  function tellPause() {
    const number = numWaiting();
    const many = waiting.at(-1)?.has_later ? " or more" : "";
    pause.hidden = mode === "search" || (mode !== "place" && hasEnded() && !isPaused);
    pause.textContent = mode === "place" ? "To the end" : !isPaused ? "Pause" : number ? `Resume (${number}${many} new)` : "Resume";
    const about = mode === "place" ? "of the log" : isPaused && number ? "lines of the log" : "the log";
    pause.setAttribute("aria-label", `${pause.textContent} ${about}`); // the job itself is paused by another button
  }

  async function answerTo(query) {
    const asked = new URLSearchParams({ slot: slot.value, ...query });
    const response = await fetch(`${panel.dataset.logUrl}?${asked}`, { signal: AbortSignal.timeout(15000), redirect: "error" });
    if (!response.ok) throw new Error(response.statusText);
    return response.json();
  }

  // An answer counts only while the reader has asked for nothing else since.
  async function ask(query, isOwnRequest = true) {
    if (isOwnRequest) turn += 1;
    const mine = turn;
    try {
      const answer = await answerTo(query);
      if (isOwnRequest && mine === turn && note.textContent === UNREAD) note.textContent = "";
      return mine === turn ? answer : null;
    } catch (error) {
      if (mine !== turn) return null;
      if (isOwnRequest) note.textContent = UNREAD;
      throw error;
    }
  }

  // Shows something else, or says that it cannot; `follow` tries again.
  async function show(act) {
    unread = null;
    await act().catch(() => {
      unread = act;
    });
  }

  function more(text, className, act) {
    const made = element("button", `button button-small log-more ${className}`, text);
    made.type = "button";
    made.addEventListener("click", act);
    return made;
  }

  function windowOf(answer) {
    const made = element("div", "log-window");
    made.dataset.first = answer.first_cursor;
    let shown = box.lastElementChild?.querySelector(".log-line:last-child")?.dataset.slot;
    for (const line of answer.lines) {
      const next = row(line);
      if (!slot.value && next.dataset.slot !== shown) made.append(element("div", "log-head", `── trainer ${line.slot} ──`));
      shown = next.dataset.slot;
      made.append(next);
    }
    return made;
  }

  function lastRow(root, number) {
    const rows = root.querySelectorAll(`.log-line[data-slot="${number}"]`);
    return rows[rows.length - 1];
  }

  // Joins the lines that a window begins with to the unfinished ones before it.
  function joinWindows(made) {
    for (const number of new Set([...made.querySelectorAll("[data-continues]")].map((one) => one.dataset.slot))) {
      for (const rest of made.querySelectorAll(`.log-line[data-slot="${number}"][data-continues]`)) {
        let before = rest.previousElementSibling;
        while (before && before.dataset.slot !== number) before = before.previousElementSibling;
        for (let part = made.previousElementSibling; !before && part; part = part.previousElementSibling) before = lastRow(part, number);
        if (before) join(before, rest);
      }
    }
    for (const head of made.querySelectorAll(".log-head")) {
      if (!head.nextElementSibling?.matches(".log-line")) head.remove();
    }
    if (!made.childElementCount && made.previousElementSibling?.matches(".log-window")) made.remove();
  }

  function add(answer) {
    nextCursor = answer.next_cursor;
    if (!answer.lines.length) return;
    const made = windowOf(answer);
    box.append(made);
    joinWindows(made);
    if (mode === "level") note.textContent = ""; // it counts the lines before these
    while (mode === "level" && box.querySelectorAll(".log-line").length > KEPT_LINES) box.firstElementChild.remove();
    if (mode !== "end") return;
    while (box.querySelectorAll(".log-line").length > KEPT_LINES && box.querySelectorAll(".log-window").length > 1) {
      box.querySelector(".log-window").remove();
      earlierButton(true);
    }
  }

  function earlierButton(isThere) {
    box.querySelector(".log-earlier")?.remove();
    if (isThere) box.prepend(more("Earlier lines", "log-earlier", showEarlier));
  }

  async function showEarlier() {
    const oldest = box.querySelector(".log-window");
    const answer = await ask({ before: oldest.dataset.first });
    if (!answer) return;
    const height = box.scrollHeight - box.scrollTop;
    const made = windowOf(answer);
    oldest.before(made);
    joinWindows(oldest);
    earlierButton(answer.has_earlier);
    box.scrollTop = box.scrollHeight - height;
  }

  async function showLater() {
    const answer = await ask({ after: nextCursor });
    if (!answer) return;
    box.querySelector(".log-later")?.remove();
    add(answer);
    if (answer.has_later) box.append(more("Later lines", "log-later", showLater));
  }

  async function showEnd() {
    const answer = await ask({});
    if (!answer) return;
    [mode, isPaused, isPausedByScroll, waiting] = ["end", false, false, []];
    box.replaceChildren();
    add(answer);
    if (!answer.lines.length) box.append(element("div", "log-line", hasEnded() ? "Nothing was written." : "Nothing has been written yet."));
    earlierButton(answer.has_earlier);
    note.textContent = "";
    box.scrollTop = box.scrollHeight;
    tellPause();
  }

  async function showPlace(offset) {
    const answer = await ask({ offset });
    if (!answer) return;
    mode = "place";
    box.replaceChildren();
    add(answer);
    earlierButton(answer.has_earlier);
    if (answer.has_later) box.append(more("Later lines", "log-later", showLater));
    const target = box.querySelector(`.log-line[data-offset="${offset}"]`);
    target?.classList.add("is-target");
    box.scrollTop = target ? target.offsetTop - box.offsetTop - box.clientHeight / 3 : 0;
    note.textContent = `A part of the log of trainer ${slot.value}.`;
    tellPause();
  }

  function showMatch(match, wanted) {
    const address = new URLSearchParams({ trainer: match.slot, byte: match.offset });
    const head = element("div", "log-head");
    const link = element("a", "", `trainer ${match.slot}, ${clockText(Date.parse(match.at))}`);
    link.href = `?${address}#log-title`;
    link.title = "Show the log at this place";
    head.append(link);
    const found = row(match);
    found.querySelector(".log-text").replaceChildren(...marked(match.text, wanted));
    const about = [match.before, match.after].map((lines) => lines.map(row));
    about.flat().forEach((one) => one.classList.add("is-context"));
    box.append(head, ...about[0], found, ...about[1]);
  }

  async function find(cursor = "", before = { matches: 0, bytes: 0 }) {
    const wanted = search.value;
    const answer = await ask({ q: wanted, level: level.value, cursor });
    if (!answer) return;
    // A search of a level alone that is at the end of the log goes on with what comes.
    mode = answer.next_cursor || wanted ? "search" : "level";
    [isPaused, isPausedByScroll, waiting] = [false, false, []];
    if (!cursor) box.replaceChildren();
    box.querySelector(".log-later")?.remove();
    answer.matches.forEach((match) => showMatch(match, wanted));
    const sum = { matches: before.matches + answer.matches.length, bytes: before.bytes + answer.searched_bytes };
    note.textContent = `${sum.matches} matching line${sum.matches === 1 ? "" : "s"} in ${sum.bytes < 1e6 ? `${Math.ceil(sum.bytes / 1e3)} kB` : `${(sum.bytes / 1e6).toFixed(1)} MB`}. ${STOPS[answer.stopped] ?? ""}`.trim();
    if (answer.next_cursor) box.append(more("Go on searching", "log-later", () => find(answer.next_cursor, sum)));
    if (mode === "level") box.scrollTop = box.scrollHeight;
    tellPause();
  }

  async function showLevel() {
    const end = await ask({});
    if (!end) return;
    nextCursor = end.next_cursor;
    isShown = new Map(end.lines.map((line) => [String(line.slot), hasLevel(line.level, level.value)]));
    await find();
  }

  // Whether a line belongs to the shown level, and has not been found by the search already.
  function isNew(line) {
    if (!line.continues) isShown.set(String(line.slot), hasLevel(line.level, level.value));
    if (!isShown.get(String(line.slot))) return false;
    return !box.querySelector(`.log-line[data-slot="${line.slot}"][data-offset="${line.offset}"]`);
  }

  function start() {
    if (search.value) return show(find);
    return show(level.value ? showLevel : showEnd);
  }

  async function follow() {
    tellPause(); // the job may have ended
    if (unread) {
      await show(unread);
      if (unread) throw new Error(UNREAD); // the page is stale
      return;
    }
    if (!isGrowing() || isFollowing || (isPaused && numWaiting() >= WAITING_LINES)) return;
    isFollowing = true;
    const cursor = nextCursor;
    const answer = await ask({ after: cursor }, false).finally(() => {
      isFollowing = false;
    });
    if (!answer || !answer.lines.length || !isGrowing() || cursor !== nextCursor) return;
    if (mode === "level" && !answer.has_later) {
      answer.lines = answer.lines.filter(isNew);
      nextCursor = answer.next_cursor;
      if (!answer.lines.length) return;
    }
    if (mode === "end" && !box.querySelector(".log-window")) {
      await showEnd();
    } else if (isPaused) {
      waiting.push(answer);
      nextCursor = answer.next_cursor;
      tellPause();
    } else if (answer.has_later) {
      await start(); // too much to show line by line: its end
    } else {
      add(answer);
      box.scrollTop = box.scrollHeight;
    }
  }

  function resume() {
    if (mode === "place") return show(showEnd);
    if (waiting.at(-1)?.has_later) return start();
    isPaused = isPausedByScroll = false;
    waiting.splice(0).forEach(add);
    box.scrollTop = box.scrollHeight;
    tellPause();
    return follow();
  }

  pause.addEventListener("click", () => {
    if (isPaused || mode === "place") return resume();
    isPaused = true;
    return tellPause();
  });
  box.addEventListener("scroll", () => {
    if (!isGrowing()) return;
    if (isPausedByScroll && isAtEnd()) resume();
    else if (!isPaused && !isAtEnd() && !hasEnded()) {
      isPaused = isPausedByScroll = true;
      tellPause();
    }
  });
  times.addEventListener("click", () => {
    times.setAttribute("aria-pressed", String(box.classList.toggle("has-times")));
  });
  slot.addEventListener("change", start);
  level.addEventListener("change", start);
  search.addEventListener("input", () => {
    window.clearTimeout(timer);
    timer = window.setTimeout(start, 250);
  });
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter") event.preventDefault();
  });
  const asked = new URLSearchParams(window.location.search);
  if (asked.has("byte") && asked.has("trainer")) {
    slot.value = asked.get("trainer");
    show(() => showPlace(asked.get("byte")));
  } else {
    start();
  }
  return follow;
}
