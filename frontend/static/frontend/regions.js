// Brings the marked parts of a page up to date from a fresh copy of the page, changing only what
// differs: focus, scroll positions, open details and half-typed input stay as they are.

import { localise } from "./times.js";

// Why a page cannot be brought up to date: it is redirected to the login.
export const LOGGED_OUT = "logged out";

export function isDirty(element) {
  if (element === document.activeElement) return true;
  if (element instanceof HTMLSelectElement) {
    const options = [...element.options];
    if (element.multiple) return options.some((option) => option.selected !== option.defaultSelected);
    return element.selectedIndex !== Math.max(0, options.findLastIndex((option) => option.defaultSelected));
  }
  if (element.type === "checkbox" || element.type === "radio") {
    return element.checked !== element.defaultChecked;
  }
  return element.value !== element.defaultValue;
}

function morphAttributes(old, fresh) {
  for (const { name } of [...old.attributes]) {
    if (name === "open" && old instanceof HTMLDetailsElement) continue;
    if (name === "title" && old instanceof HTMLTimeElement) continue;
    if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (name === "open" && old instanceof HTMLDetailsElement) continue;
    if (old.getAttribute(name) === value) continue;
    old.setAttribute(name, value);
  }
}

function matches(old, fresh) {
  return old.nodeType === fresh.nodeType && old.nodeName === fresh.nodeName && (old.id ?? "") === (fresh.id ?? "")
    && (old.dataset?.key ?? "") === (fresh.dataset?.key ?? "")
    && (old.nodeName !== "FORM" || old.getAttribute("action") === fresh.getAttribute("action"));
}

function morph(old, fresh) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE || old.matches("[data-figure]")) return; // charts draw themselves
  if (old.matches("input, select, textarea") && isDirty(old)) return;
  morphAttributes(old, fresh);
  if (old.nodeName === "TIME" && old.dateTime === fresh.dateTime && old.textContent) return;
  morphChildren(old, fresh);
}

function morphChildren(old, fresh) {
  let place = old.firstChild;
  for (const next of [...fresh.childNodes]) {
    let found = place;
    if (next.dataset?.key) {
      while (found && !matches(found, next)) found = found.nextSibling;
    }
    if (found && matches(found, next)) {
      if (found === place) place = place.nextSibling;
      else old.insertBefore(found, place);
      morph(found, next);
    } else {
      old.insertBefore(document.importNode(next, true), place);
    }
  }
  while (place) {
    const gone = place;
    place = place.nextSibling;
    gone.remove();
  }
}

export async function refreshRegions() {
  const regions = document.querySelectorAll("[data-live]");
  if (!regions.length) return;
  const response = await fetch(window.location.href, {
    headers: { "X-Requested-With": "live" },
    signal: AbortSignal.timeout(15000),
    redirect: "manual",
  });
  if (response.type === "opaqueredirect") throw new Error(LOGGED_OUT);
  if (!response.ok && response.status !== 400) throw new Error(response.statusText); // 400: of a filter
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  for (const region of regions) {
    if (region.hasAttribute("data-held")) continue; // somebody rearranges it
    const fresh = page.getElementById(region.id);
    const focused = document.activeElement;
    if (fresh) morph(region, fresh);
    if (focused.isConnected && focused !== document.activeElement) focused.focus({ preventScroll: true }); // it was moved
    localise(region);
  }
}
