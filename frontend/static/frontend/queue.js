// The queue's order by drag, arrow keys and buttons: a moved job takes the tier of its neighbours and
// a priority between theirs. Moves only fill in the form, which is previewed and applied as it is.

const region = document.getElementById("queue");
const form = document.getElementById("changes");
const preview = document.getElementById("changes-preview");

function read(row) {
  const tier = row.querySelector("select");
  const priority = row.querySelector('[type="number"]');
  const given = priority.valueAsNumber || Number(priority.defaultValue);
  return { row, id: Number(row.dataset.key.slice(4)), rank: tier.selectedIndex, priority: given };
}

function rows() {
  return [...region.querySelectorAll("tbody tr")];
}

function isBefore(one, other) {
  if (one.rank !== other.rank) return one.rank < other.rank;
  return one.priority !== other.priority ? one.priority > other.priority : one.id < other.id;
}

function inOrder() {
  return rows().map(read).sort((one, other) => (isBefore(one, other) ? -1 : 1));
}

// Priorities with which the job at `place` comes right there; of equal priorities the older job is
// first. If its neighbours leave no number free, those above are raised or those below lowered,
// whichever are fewer. Gives the jobs of `order` whose priority changes; null: there is no room.
function fit(order, place, lowest, highest) {
  const job = order[place];
  const [above, below] = [order[place - 1], order[place + 1]].map((one) => (one?.rank === job.rank ? one : null));
  const high = above ? above.priority - (above.id < job.id ? 0 : 1) : highest;
  const low = below ? below.priority + (job.id < below.id ? 0 : 1) : lowest;
  if (low <= high) {
    const isThere = low <= job.priority && job.priority <= high;
    const aim = above && below && !isThere ? Math.round((above.priority + below.priority) / 2) : job.priority;
    return [{ ...job, priority: Math.min(Math.max(aim, low), high) }];
  }
  const raised = shift(order.slice(0, place).reverse(), { ...job, priority: low }, 1);
  const lowered = shift(order.slice(place + 1), { ...job, priority: high }, -1);
  const fits = (jobs) => jobs.every((one) => lowest <= one.priority && one.priority <= highest);
  const ways = [raised, lowered].filter(fits);
  return ways.sort((one, other) => one.length - other.length)[0] ?? null;
}

// Moves `others`, the nearest first, out of the way of `job`: up (1) or down (-1) as far as needed.
function shift(others, job, sign) {
  const changed = [job];
  for (const other of others) {
    const last = changed.at(-1);
    if (other.rank !== job.rank || (sign > 0 ? isBefore(other, last) : isBefore(last, other))) break;
    const isOlderFirst = sign > 0 ? other.id < last.id : last.id < other.id;
    changed.push({ ...other, priority: last.priority + (isOlderFirst ? 0 : sign) });
  }
  return changed;
}

// Moves all rows but `fixed`, which keeps focus and pointer.
function arrange(order, fixed) {
  const now = rows();
  if (order.every((row, place) => row === now[place])) return;
  const place = order.indexOf(fixed);
  for (const row of order.slice(0, place)) fixed.before(row);
  for (const row of order.slice(place + 1).reverse()) fixed.after(row);
}

function changesOf(row) {
  const tier = row.querySelector("select");
  const priority = row.querySelector('[type="number"]');
  const seen = [...tier.options].find((option) => option.defaultSelected)?.value;
  const texts = [];
  if (tier.value !== seen) texts.push(`${seen} → ${tier.value}`);
  if (priority.value !== priority.defaultValue) texts.push(`${priority.defaultValue} → ${priority.value}`);
  return texts;
}

function signature() {
  return rows().map((row) => `${row.dataset.key} ${changesOf(row)}`).sort().join();
}

// While changes wait, the list stands still: nothing moves under the pointer.
function show() {
  let num = 0;
  for (const row of rows()) {
    const texts = changesOf(row);
    if (texts.length) num += 1;
    row.classList.toggle("is-changed", texts.length > 0);
    row.querySelector(".change").textContent = texts.join(", ");
  }
  region.toggleAttribute("data-held", num > 0);
  const text = num === 1 ? "1 change, not applied" : `${num} changes, not applied`;
  document.getElementById("changes-count").textContent = num ? `${text}; the list is not refreshed meanwhile` : "No changes";
  if (preview) preview.hidden = signature() !== previewed;
  form.classList.toggle("is-pending", num > 0 && (preview?.hidden ?? true));
  if (num) return;
  moving = null;
  form.reset(); // or a fresh copy of the page would not fill in what was typed and taken back
}

function say(text) {
  document.getElementById("changes-said").textContent = text;
}

function sort(fixed) {
  arrange(inOrder().map((job) => job.row), fixed);
  show();
}

function write({ row, rank, priority }) {
  row.querySelector("select").selectedIndex = rank;
  row.querySelector('[type="number"]').value = priority;
}

// Brings the row at `place` of `order` there, in a tier of that rank. Moves of one job in a row count
// from where it was before the first: moved back, it leaves no change.
function settle(order, place, rank) {
  const row = order[place];
  const { min, max } = row.querySelector('[type="number"]');
  if (moving?.row !== row) moving = { row, jobs: inOrder() };
  const jobs = order.map((one) => moving.jobs.find((job) => job.row === one));
  jobs[place] = { ...jobs[place], rank };
  const changed = fit(jobs, place, Number(min), Number(max));
  if (!changed) {
    say(`There is no room for job ${jobs[place].id}: all priorities from ${min} to ${max} are taken.`);
  } else {
    [...moving.jobs, ...changed].forEach(write);
    const others = changed.slice(1).map((job) => `#${job.id}`).join(", ");
    const also = others ? ` Also changed, since no number is free between its neighbours: ${others}.` : "";
    say(`Job ${jobs[place].id}: ${changesOf(row).join(", ") || "as before"}, place ${place + 1} of ${order.length}.${also}`);
  }
  sort(row);
  row.scrollIntoView({ block: "nearest" });
}

function step(row, by) {
  const order = rows();
  const place = order.indexOf(row);
  const [job, next] = [row, order[place + by]].map((one) => one && read(one));
  if (!next) return say(`Job ${job.id} is ${by < 0 ? "first" : "last"} on this page.`);
  // A step over the border of a tier changes the tier; the place follows with the next step.
  if (next.rank !== job.rank) return settle(order, place, next.rank);
  [order[place], order[place + by]] = [next.row, row];
  return settle(order, place + by, job.rank);
}

// At the border of two tiers the job keeps its own, or takes the one nearer to where it was.
function drop(row, from) {
  const order = rows();
  const place = order.indexOf(row);
  if (place === from) return show();
  const near = [order[place - 1], order[place + 1]].filter(Boolean).map((one) => read(one).rank);
  const own = read(row).rank;
  return settle(order, place, near.includes(own) ? own : near.at(place < from ? -1 : 0));
}

function drag(event) {
  const handle = event.target.closest(".move-drag");
  if (!handle || event.button || region.querySelector(".is-dragged")) return;
  const row = handle.closest("tr");
  const from = rows().indexOf(row);
  const ended = new AbortController();
  handle.setPointerCapture(event.pointerId);
  row.classList.add("is-dragged");
  region.toggleAttribute("data-held", true);
  const listen = (name, listener) => window.addEventListener(name, (heard) => {
    if ((heard.pointerId ?? event.pointerId) === event.pointerId) listener(heard); // not another finger
  }, { signal: ended.signal });
  const end = (finish) => {
    ended.abort();
    row.classList.remove("is-dragged");
    finish();
  };
  listen("pointermove", ({ clientY }) => {
    const edge = 70;
    if (clientY < edge || clientY > window.innerHeight - edge) window.scrollBy(0, clientY < edge ? -12 : 12);
    const others = rows().filter((one) => one !== row);
    const middle = (one) => (one.getBoundingClientRect().top + one.getBoundingClientRect().bottom) / 2;
    others.splice(others.filter((one) => middle(one) < clientY).length, 0, row);
    arrange(others, row);
  });
  listen("pointerup", () => end(() => drop(row, from)));
  listen("pointercancel", () => end(() => sort(row)));
  listen("keydown", (pressed) => {
    if (pressed.key === "Escape") end(() => sort(row));
  });
}

function press(event) {
  if (!event.target.matches(".move-drag")) return;
  const by = { ArrowUp: -1, ArrowDown: 1 }[event.key];
  if (!by && event.key !== "Enter" && event.key !== "Home") return;
  event.preventDefault();
  const row = event.target.closest("tr");
  if (by) step(row, by);
  else if (event.key === "Home") {
    form.elements.move.value = read(row).id;
    form.requestSubmit(form.querySelector('[value="top"]'));
  } else form.requestSubmit(form.querySelector('[value="preview"]'));
}

// A page that shows a preview comes with the changed values filled in: the fields' defaults are what
// the jobs have.
function recallDefaults(row) {
  const [seenTier, seenPriority] = row.querySelector('[name^="seen"]').value.split(" ");
  const tier = row.querySelector("select");
  const priority = row.querySelector('[type="number"]');
  const [rank, given] = [tier.selectedIndex, priority.value];
  for (const option of tier.options) option.defaultSelected = option.value === seenTier;
  priority.defaultValue = seenPriority;
  tier.selectedIndex = rank;
  priority.value = given;
}

// The browser asks before changes are lost, unless they are sent or discarded.
function guard() {
  let isOver = false;
  const end = () => (isOver = true);
  for (const part of [form, preview].filter(Boolean)) {
    part.addEventListener("submit", end);
    part.querySelector('a[href^="?page="]').addEventListener("click", end);
  }
  window.addEventListener("beforeunload", (event) => {
    if (!isOver && region.querySelector(".is-changed")) event.preventDefault();
  });
}

let moving = null;
let previewed = "";
if (form) {
  guard();
  rows().forEach(recallDefaults);
  previewed = signature();
  region.addEventListener("pointerdown", drag);
  region.addEventListener("keydown", press);
  region.addEventListener("click", (event) => {
    const button = event.target.closest("[data-step]");
    if (button) step(button.closest("tr"), Number(button.dataset.step));
  });
  // At once while somebody types: a click on a button must not find that it has just moved.
  region.addEventListener("input", show);
  region.addEventListener("change", (event) => {
    moving = null;
    sort(document.activeElement.closest("tr") ?? event.target.closest("tr"));
  });
  sort(rows()[0]);
}
