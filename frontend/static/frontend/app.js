// Starts what a page has: live parts, charts, the log, the submission form, small conveniences.

import { drawAll, refreshFigures, startCharts } from "./charts.js";
import { startTheme, startZone } from "./choices.js";
import { onChange, start } from "./live.js";
import { startLog } from "./log.js";
import { startPalette } from "./palette.js";
import { isDirty, refreshRegions } from "./regions.js";
import { startSubmitForm } from "./submit.js";
import { keepAges, localise, tellTyped, tellZone } from "./times.js";

function tell(text) {
  document.getElementById("announcer").textContent = text;
}

function startCopyButtons() {
  document.addEventListener("click", async ({ target }) => {
    const button = target.closest("[data-copy]");
    if (!button) return undefined;
    const source = document.getElementById(button.dataset.copy);
    try {
      await navigator.clipboard.writeText(source.textContent);
    } catch {
      // Without permission, or without TLS, where there is no other way.
      window.getSelection().selectAllChildren(source);
      if (!document.execCommand("copy")) return tell("Selected. Copy it with the keyboard.");
    }
    for (const other of document.querySelectorAll("[data-copy]")) other.textContent = "Copy";
    button.textContent = "Copied";
    return tell("Copied");
  });
}

// A page that answers a form stands in the history as the page of that form: Back and reload ask for
// it again instead of sending the form once more.
function forgetForm() {
  if (!("answersForm" in document.body.dataset)) return;
  const isOurs = document.referrer.startsWith(`${window.location.origin}/`);
  window.history.replaceState(null, "", isOurs ? document.referrer : window.location.href);
}

// A line of the code may be inside a closed section; not every browser opens it for a link.
function openTarget() {
  const target = document.getElementById(window.location.hash.slice(1));
  const around = target?.closest("details:not([open])");
  if (!around) return;
  around.open = true;
  target.scrollIntoView();
}

function startMenus() {
  const closeOthers = ({ target }) => {
    for (const menu of document.querySelectorAll("details.menu[open]")) {
      if (!menu.contains(target)) menu.open = false;
    }
  };
  document.addEventListener("click", closeOthers);
  document.addEventListener("focusin", closeOthers); // by keys
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    for (const menu of document.querySelectorAll("details.menu[open]")) {
      menu.open = false;
      menu.querySelector("summary").focus();
    }
  });
}

const ANSWER_MS = 15000;
const sentAt = new WeakMap(); // by form; an attribute would be taken away by the next refresh

// A login in another tab has given this browser a new token, and clicks before the answer are meant
// once.
function startForms() {
  document.addEventListener("submit", ({ target: form }) => {
    const cookie = document.cookie.match(/(?:^|; )virtualflow_csrf=([^;]+)/);
    const token = form.elements.namedItem("csrfmiddlewaretoken");
    if (cookie && token) token.value = cookie[1];
  }, true);
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.method !== "post" || event.defaultPrevented) return;
    if (Date.now() - (sentAt.get(form) ?? 0) < ANSWER_MS) event.preventDefault();
    else sentAt.set(form, Date.now());
  });
}

// Such forms may come later, with charts. Arrow keys change a list step by step, so the page that
// answers has the focus on the same list.
function startSelfSubmitting() {
  const changed = document.getElementById(window.sessionStorage.getItem("changed"));
  if (changed?.form?.matches("[data-submit-on-change]")) changed.focus();
  window.sessionStorage.removeItem("changed");
  document.addEventListener("change", ({ target }) => {
    if (!target.form?.matches("[data-submit-on-change]")) return;
    window.sessionStorage.setItem("changed", target.id);
    target.form.requestSubmit();
  });
}

// A browser that comes back fills in what was typed, and tells nobody: it may be in a closed section.
function openTyped() {
  for (const section of document.querySelectorAll("details:not(.menu)")) {
    if ([...section.querySelectorAll("input, select, textarea")].some(isDirty)) section.open = true;
  }
}

forgetForm();
localise();
tellZone();
keepAges();
startCopyButtons();
openTarget();
window.addEventListener("hashchange", openTarget);
window.addEventListener("pageshow", openTyped);
window.addEventListener("pageshow", tellTyped);
document.addEventListener("input", tellTyped);
startMenus();
startForms();
startTheme(drawAll);
startZone(() => {
  localise();
  tellZone();
  tellTyped();
  drawAll();
});
startPalette(tell);
startSelfSubmitting();
startSubmitForm();
startCharts();
const refreshLog = startLog();
let regions;
onChange(() => {
  regions = refreshRegions();
  return regions;
});
onChange(() => regions.catch(() => {}).then(refreshFigures)); // a fresh region may bring charts
onChange(refreshLog);
start();
