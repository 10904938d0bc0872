// The submission form: fills in a template's values, says what the numbers mean while they are
// typed, and shows the server's answer at the fields without losing a chosen file.

function field(form, name) {
  return form.elements.namedItem(name);
}

function shown(input) {
  return input.type === "checkbox" ? input.checked : input.value;
}

// Whether the value of a field is no longer the one that was filled in.
function isTyped(form, name, filled) {
  const input = field(form, name);
  if (!input || !(name in filled)) return false;
  return shown(input) !== (input.type === "checkbox" ? filled[name] : String(filled[name] ?? ""));
}

// What was typed stays, but for the settings, which are of one code; limits go together.
function fill(form, values, before) {
  const typed = Object.keys(values).filter((name) => isTyped(form, name, before));
  const keepsLimit = typed.some((name) => name.startsWith("stop_"));
  for (const [name, value] of Object.entries(values)) {
    const input = field(form, name);
    const isKept = name.startsWith("stop_") ? keepsLimit : name !== "settings" && typed.includes(name);
    if (!input || isKept) continue;
    if (input.type === "checkbox") input.checked = value;
    else input.value = value ?? "";
  }
}

// Another code has neither a template's name nor its settings; what was typed stays.
function forget(form, values) {
  const empty = { name: "", settings: "{}" };
  for (const [name, nothing] of Object.entries(empty)) {
    if (field(form, name).value === values[name]) field(form, name).value = nothing;
  }
  return { ...values, ...empty };
}

function evenText(total, parts) {
  const low = Math.floor(total / parts);
  return total % parts ? `${low} or ${low + 1}` : `${low}`;
}

function counted(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

function splitText(form) {
  const [batch, parts, most] = ["global_batch_size", "num_virtual_nodes", "max_accelerators"].map((name) => Number(field(form, name).value));
  if (!batch || !parts) return "";
  if (parts > batch) return `${parts} virtual nodes cannot share ${counted(batch, "example")}; use at most ${counted(batch, "virtual node")}.`;
  const each = `Each virtual node takes ${evenText(batch, parts)} of ${counted(batch, "example")}.`;
  if (!most) return each;
  if (most > parts) return `${each} ${counted(parts, "virtual node")} can use at most ${counted(parts, "accelerator")}.`;
  return `${each} On ${counted(most, "accelerator")}, each runs ${evenText(parts, most)} of the ${counted(parts, "virtual node")}.`;
}

// What a job that predicts does not have, and what only it has.
const TRAINING_FIELDS = ["batch_size_min", "batch_size_max", "shuffle", "allow_mixed_kinds", "reduction"];

function showTask(form) {
  const predicts = field(form, "task").value === "predict";
  document.getElementById("stop-section").hidden = predicts;
  document.getElementById("selection-fields").hidden = predicts;
  document.getElementById("tuning-fields").hidden = predicts;
  document.getElementById("start-fields").hidden = predicts;
  for (const name of TRAINING_FIELDS) field(form, name).closest(".field").hidden = predicts;
  field(form, "source_job").closest(".field").hidden = !predicts;
}

function showHelp(form) {
  showTask(form);
  document.getElementById("split-help").textContent = splitText(form);
  document.getElementById("metric-fields").hidden = field(form, "stop_kind").value !== "metric";
  document.getElementById("upload-fields").hidden = form.querySelector("[name=code_from]:checked")?.value !== "upload";
}

function showErrors(form, errors, focus = true) {
  for (const line of form.querySelectorAll("[data-error-for]")) {
    const texts = errors[line.dataset.errorFor] ?? [];
    line.textContent = texts.join(" ");
    line.hidden = !texts.length;
    const inputs = form.querySelectorAll(`[name="${line.dataset.errorFor}"]`);
    for (const input of inputs) {
      if (texts.length) {
        input.setAttribute("aria-invalid", "true");
        input.closest("details")?.setAttribute("open", "");
      }
      else input.removeAttribute("aria-invalid");
    }
  }
  const box = document.getElementById("form-errors");
  box.hidden = !Object.keys(errors).length;
  document.getElementById("form-errors-text").textContent = (errors.__all__ ?? []).join(" ");
  if (!focus) return;
  const first = form.querySelector("[aria-invalid=true]");
  box.querySelector("h2").hidden = !first;
  if (first) first.focus();
  else if (!box.hidden) box.scrollIntoView({ block: "center" });
}

function element(name, text, className = "") {
  const made = document.createElement(name);
  made.textContent = text;
  made.className = className;
  return made;
}

function table(columns, rows) {
  const place = element("div", "", "table-scroll check-rows");
  place.tabIndex = 0;
  place.setAttribute("role", "region");
  place.setAttribute("aria-label", "Jobs, table");
  const made = element("table", "");
  const head = made.createTHead().insertRow();
  for (const name of columns) {
    const cell = element("th", name);
    cell.scope = "col";
    head.append(cell);
  }
  const body = made.createTBody();
  for (const row of rows) body.insertRow().append(...row.map((text) => element("td", text)));
  place.append(made);
  return place;
}

function showCheck(check) {
  const place = document.getElementById("check-result");
  const shown = JSON.stringify(check ?? null);
  if (place.dataset.shown === shown) return; // it would be read out again
  place.dataset.shown = shown;
  place.replaceChildren();
  if (!check) return;
  const notice = element("div", "", `notice check notice-${check.tone}`);
  notice.append(element("h2", check.title), element("p", check.text));
  if (check.memory) notice.append(element("p", check.memory));
  if (check.traceback) {
    const trace = element("pre", check.traceback, "block");
    trace.tabIndex = 0;
    trace.setAttribute("role", "region");
    trace.setAttribute("aria-label", "Traceback");
    notice.append(trace);
  }
  if (check.rows?.length) notice.append(table(check.columns, check.rows));
  if (check.num_virtual_nodes) {
    const use = element("button", `Use ${check.num_virtual_nodes} virtual nodes`, "button");
    use.type = "button";
    use.dataset.virtualNodes = check.num_virtual_nodes;
    notice.append(use);
  }
  place.append(notice);
}

// Texts to copy, which the server has rendered and escaped.
function showCopy(html) {
  const place = document.getElementById("copy-result");
  place.replaceChildren(...new DOMParser().parseFromString(html ?? "", "text/html").body.childNodes);
  if (!html) return;
  place.firstElementChild.focus({ preventScroll: true });
  place.scrollIntoView({ block: "start" });
}

// The server ends a measurement in time, so this many seconds are only for when it cannot.
const MOST_ASKED = 4000;
// Who waits for a measurement; null once something else was asked.
let follower = null;

async function follow(form, address) {
  const me = {};
  follower = me;
  for (let asked = 0, failures = 0; asked < MOST_ASKED && failures < 5; asked += 1) {
    await new Promise((resolve) => { setTimeout(resolve, 1000); });
    if (follower !== me) return;
    let answer;
    try {
      const response = await fetch(address, { headers: { Accept: "application/json" }, signal: AbortSignal.timeout(10000), redirect: "error" });
      if (!response.ok) throw new Error(response.statusText);
      answer = await response.json();
      failures = 0;
    } catch {
      failures += 1;
      continue;
    }
    if (follower !== me) return;
    showCheck(answer.check);
    if (!answer.check.waits_at) {
      showErrors(form, answer.errors, false); // somebody may be typing
      return;
    }
  }
  showCheck({ tone: "bad", title: "The result is unknown", text: "The server did not answer. Nothing was submitted; try again." });
}

// Browsers refuse to send a file that was saved again after it was chosen.
async function isReadable(file) {
  try {
    await file.slice(0, 1).arrayBuffer();
    return true;
  } catch {
    return false;
  }
}

// The answer to the form, or what a refusal or an error page of the site says.
async function read(response) {
  if (response.headers.get("Content-Type")?.includes("json")) {
    const answer = await response.json();
    return answer.detail ? { errors: { __all__: [answer.detail] } } : answer;
  }
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  const texts = [...page.querySelectorAll("main .empty > :is(h1, p)")].map((one) => one.textContent.trim());
  if ([401, 413].includes(response.status)) texts.push("The site does not take this much, or you are logged out");
  if (!texts.length) throw new Error(response.statusText);
  return { errors: { __all__: [texts.join(". ")] } };
}

async function send(form, button) {
  const file = field(form, "code").files[0];
  const limit = Number(form.dataset.maxBytes);
  if (file && file.size > limit) {
    showErrors(form, { code: [`${file.name} has ${Math.ceil(file.size / 1048576)} MiB; at most ${Math.floor(limit / 1048576)} MiB are taken.`] });
    return;
  }
  // Of a text that is no number the form would send nothing, as if the field were empty.
  const unread = [...form.elements].filter((one) => one.validity?.badInput);
  if (unread.length) {
    showErrors(form, Object.fromEntries(unread.map((one) => [one.name, ["Give a number."]])));
    return;
  }
  const body = new FormData(form);
  body.set("do", button?.value ?? "submit");
  follower = null;
  const buttons = form.querySelectorAll(".submit-bar button");
  const focused = document.activeElement;
  buttons.forEach((each) => { each.disabled = true; });
  try {
    const response = await fetch(form.action || window.location.href, {
      method: "POST", body, headers: { Accept: "application/json" }, signal: AbortSignal.timeout(60000), redirect: "error",
    });
    const answer = await read(response);
    if (answer.location) {
      window.location.assign(answer.location);
      return;
    }
    const isElsewhere = document.activeElement !== focused && form.contains(document.activeElement);
    showErrors(form, answer.errors ?? {}, !isElsewhere); // a late answer must not interrupt typing
    showCheck(answer.check);
    showCopy(answer.copy);
    if (answer.check) document.getElementById("check-result").scrollIntoView({ block: "nearest" });
    if (answer.check?.waits_at) follow(form, answer.check.waits_at);
  } catch {
    if (file && !(await isReadable(file))) {
      field(form, "code").value = "";
      showErrors(form, { code: [`${file.name} was changed after it was chosen. Choose it again.`] });
    } else showErrors(form, { __all__: ["The server did not answer. Press the button again: what has arrived already is submitted once."] });
  } finally {
    buttons.forEach((each) => { each.disabled = false; });
  }
}

export function startSubmitForm() {
  const form = document.getElementById("job-form");
  if (!form) return;
  const templates = JSON.parse(document.getElementById("template-values").textContent);
  let filled = { ...templates[form.querySelector("[name=code_from]:checked")?.value] };
  form.addEventListener("change", ({ target }) => {
    if (target.name === "code_from" && templates[target.value]) {
      fill(form, templates[target.value], filled);
      filled = { ...templates[target.value] };
    } else if (target.name === "code_from") filled = forget(form, filled);
    if (target.name === "code" && target.files[0] && !field(form, "name").value) {
      filled.name = target.files[0].name.replace(/\.(py|zip)$/, "");
      field(form, "name").value = filled.name;
    }
    showHelp(form);
  });
  form.addEventListener("input", () => showHelp(form));
  document.getElementById("check-result").addEventListener("click", (event) => {
    const { target } = event;
    if (!target.dataset.virtualNodes) return;
    event.preventDefault();
    const input = field(form, "num_virtual_nodes");
    input.value = target.dataset.virtualNodes;
    showHelp(form);
    input.focus();
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(form, event.submitter);
  });
  // A browser that comes back fills in what was typed after this script, and tells nobody.
  window.addEventListener("pageshow", () => {
    filled = { ...templates[form.querySelector("[name=code_from]:checked")?.value] };
    showHelp(form);
  });
  const waiting = form.querySelector("[data-waits-at]");
  if (waiting) follow(form, waiting.dataset.waitsAt);
  showHelp(form);
}
