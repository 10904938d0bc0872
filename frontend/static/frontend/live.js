// Says when something changed: by the event stream, or by a clock while there is no stream.

import { LOGGED_OUT } from "./regions.js";
import { clockText } from "./times.js";

const POLL_MS = 4000;
// From one refresh to the next; slow ones take at most a quarter of the time, if less than 2.5 s each.
const MIN_GAP_MS = 1000;
const MAX_GAP_MS = 10000;
const RETRY_LIMIT_MS = 60000;
// The stream says every 15 s that it is alive.
const SILENCE_LIMIT_MS = 40000;

const listeners = new Set();
let state = "";
let source = null;
let retryMs = 2000;
let lastAt = 0;
let gapMs = MIN_GAP_MS;
let heardAt = 0;
let isAsked = false;
let isBusy = false;
let isStale = false;
let isLoggedOut = false;
let refreshedAt = Date.now();

export function onChange(listener) {
  listeners.add(listener);
}

function show(next) {
  state = next;
  const badge = document.getElementById("live-state");
  let text = next === "live" ? "Live" : "Every few seconds";
  if (isStale) text = `Not refreshed since ${clockText(refreshedAt)}`;
  if (isLoggedOut) text = `Logged out. ${text}`;
  if (!badge || badge.textContent === text) return;
  badge.hidden = false;
  badge.dataset.state = isStale ? "stale" : next;
  badge.textContent = text;
}

// Many changes in a row are one refresh, one more follows if something changed meanwhile, and none
// happens while nobody looks.
export function announce() {
  isAsked = true;
  if (isBusy || document.hidden) return;
  isBusy = true;
  window.setTimeout(refresh, Math.max(0, lastAt + gapMs - Date.now()));
}

async function refresh() {
  isAsked = false;
  lastAt = Date.now();
  const began = state;
  const ends = await Promise.allSettled([...listeners].map((listener) => listener()));
  gapMs = Math.min(Math.max(4 * (Date.now() - lastAt), MIN_GAP_MS), MAX_GAP_MS);
  isBusy = false;
  isStale = ends.some(({ status }) => status === "rejected");
  isLoggedOut = ends.some(({ reason }) => reason?.message === LOGGED_OUT);
  if (!isStale) refreshedAt = Date.now();
  show(state);
  document.body.dataset.refreshed = began;
  if (isAsked) announce();
}

function open(url) {
  source = new EventSource(url, { withCredentials: true });
  for (const kind of ["open", "alive", "changed"]) {
    source.addEventListener(kind, () => (heardAt = Date.now()));
  }
  source.addEventListener("open", () => {
    retryMs = 2000;
    show("live");
    announce();
  });
  source.addEventListener("changed", announce);
  source.addEventListener("error", () => {
    show("polling");
    // The browser tries again by itself unless the server answered with something else.
    if (source.readyState !== EventSource.CLOSED) return;
    window.setTimeout(() => open(url), retryMs);
    retryMs = Math.min(retryMs * 2, RETRY_LIMIT_MS);
  });
}

export function start() {
  const url = document.body.dataset.streamUrl;
  if (!document.querySelector("[data-live], [data-figure]")) return;
  if (url) open(url);
  show("polling");
  window.setInterval(() => {
    if (state === "live" && Date.now() - heardAt > SILENCE_LIMIT_MS) {
      source.close();
      show("polling");
      open(url);
    }
    if (state !== "live" || isStale) announce();
  }, POLL_MS);
  document.addEventListener("visibilitychange", announce);
  window.addEventListener("pagehide", () => source?.close());
}
