// Shows times in the reader's own zone: <time datetime="..."> keeps the full text as its title.

const FULL = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });
const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const MINUTE = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const DAY = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" });
const RELATIVE = new Intl.RelativeTimeFormat(undefined, { numeric: "always", style: "narrow" });
const UNITS = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];

function clock(date, format = CLOCK) {
  const isToday = date.toDateString() === new Date().toDateString();
  return isToday ? format.format(date) : `${DAY.format(date)} ${format.format(date)}`;
}

function age(date) {
  const seconds = (date.getTime() - Date.now()) / 1000;
  if (Math.abs(seconds) < 2) return "now";
  const [unit, size] = UNITS.find(([, unitSize]) => Math.abs(seconds) >= unitSize) ?? UNITS[3];
  return RELATIVE.format(Math.trunc(seconds / size), unit);
}

// Without this script times stay in UTC, and the foot of the page says so.
export function tellZone() {
  const zone = document.getElementById("zone");
  if (zone) zone.textContent = `Times are in your time zone, ${FULL.resolvedOptions().timeZone}.`;
}

export function localise(root = document) {
  for (const element of root.querySelectorAll("time[datetime]")) {
    const date = new Date(element.dateTime);
    if (Number.isNaN(date.getTime())) continue;
    const as = element.dataset.as;
    const text = as === "age" ? age(date) : clock(date, as === "minute" ? MINUTE : CLOCK);
    if (element.textContent !== text) element.textContent = text;
    if (!element.title) element.title = FULL.format(date);
  }
}

export function clockText(milliseconds) {
  return clock(new Date(milliseconds));
}

// A date as Plotly wants it: without a zone, so that its axis shows the reader's.
export function localStamp(milliseconds) {
  const date = new Date(milliseconds);
  return new Date(milliseconds - date.getTimezoneOffset() * 60000).toISOString().slice(0, -1);
}

export function keepAges() {
  window.setInterval(() => localise(), 1000);
}
