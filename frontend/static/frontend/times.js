// Shows times in the zone that the reader has chosen, the browser's own or UTC, and in English as the
// text around them and the axes of charts: <time datetime="..."> has the full text as its title.

const LANGUAGE = "en-US";
const RELATIVE = new Intl.RelativeTimeFormat(LANGUAGE, { numeric: "always", style: "narrow" });
const UNITS = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];
const FORMATS = { browser: formats(undefined), utc: formats("UTC") };

// By how much the reader's clock is behind the site's, whose time all others are; less than half a
// minute may be the time that the page took to arrive.
const BEHIND_MS = Date.parse(document.documentElement.dataset.now) - Date.now();
const SKEW_MS = Math.abs(BEHIND_MS) > 30000 ? BEHIND_MS : 0;

function now() {
  return Date.now() + SKEW_MS;
}

function formats(timeZone) {
  const format = (options) => new Intl.DateTimeFormat(LANGUAGE, { ...options, hourCycle: "h23", timeZone });
  return {
    full: format({ dateStyle: "medium", timeStyle: "long" }),
    date: format({ dateStyle: "short" }),
    day: format({ month: "short", day: "numeric" }),
    dayOfYear: format({ month: "short", day: "numeric", year: "numeric" }),
    year: format({ year: "numeric" }),
    clock: format({ hour: "2-digit", minute: "2-digit", second: "2-digit" }),
    minute: format({ hour: "2-digit", minute: "2-digit" }),
  };
}

function isUtc() {
  return document.documentElement.dataset.zone === "utc";
}

function chosen() {
  return isUtc() ? FORMATS.utc : FORMATS.browser;
}

function clock(at, as) {
  const { date, day, dayOfYear, year, clock, minute } = chosen();
  const today = new Date(now());
  const time = (as === "minute" ? minute : clock).format(at);
  if (as !== "dated" && date.format(at) === date.format(today)) return time;
  const isThisYear = year.format(at) === year.format(today);
  return `${(isThisYear ? day : dayOfYear).format(at)} ${time}`;
}

function age(date) {
  const seconds = (date.getTime() - now()) / 1000;
  if (Math.abs(seconds) < 2) return "now";
  const [unit, size] = UNITS.find(([, unitSize]) => Math.abs(seconds) >= unitSize) ?? UNITS[3];
  return RELATIVE.format(Math.trunc(seconds / size), unit);
}

// Without this script times stay in UTC, and the foot of the page says so.
export function tellZone() {
  const zone = FORMATS.browser.full.resolvedOptions().timeZone;
  document.getElementById("zone-note").textContent = isUtc() ? "Times are in UTC." : `Times are in your time zone, ${zone}.`;
}

// Times are typed in UTC: beside each field stands what that is in the chosen zone.
export function tellTyped() {
  for (const field of document.querySelectorAll("[type=datetime-local]")) {
    const at = new Date(`${field.value}Z`);
    const text = isUtc() || Number.isNaN(at.getTime()) ? "" : `= ${chosen().full.format(at)}`;
    if (!field.nextElementSibling?.matches("output")) field.after(document.createElement("output"));
    const said = field.nextElementSibling;
    said.className = "help";
    if (said.textContent !== text) said.textContent = text;
  }
}

export function localise(root = document) {
  for (const element of root.querySelectorAll("time[datetime]")) {
    const date = new Date(element.dateTime);
    if (Number.isNaN(date.getTime())) continue;
    const as = element.dataset.as;
    const text = as === "age" ? age(date) : clock(date, as);
    if (element.textContent !== text) element.textContent = text;
    const title = chosen().full.format(date);
    if (element.title !== title) element.title = title;
  }
}

export function clockText(milliseconds) {
  return clock(new Date(milliseconds));
}

// Dates as Plotly wants them: without a zone, so that its axis shows the chosen one. Where clocks go
// back between both times, those before are shown by the later clock: two hours would coincide.
export function axisTimes(first, last) {
  const [before, after] = [first, last].map((at) => new Date(at).getTimezoneOffset());
  const fixed = isUtc() ? 0 : after > before ? after : null;
  return {
    stampOf: (at) => new Date(at - (fixed ?? new Date(at).getTimezoneOffset()) * 60000).toISOString().slice(0, -1),
    timeOf: (stamp) => {
      const text = String(stamp).replace(" ", "T");
      return fixed === null ? new Date(text) : new Date(Date.parse(`${text}Z`) + fixed * 60000);
    },
  };
}

export function keepAges() {
  window.setInterval(() => localise(), 1000);
}
