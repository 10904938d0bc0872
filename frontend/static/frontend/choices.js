// Applies choices of the menu at once; the server keeps them in cookies and sends them with every page.

function startChoice(form, apply) {
  form?.addEventListener("submit", (event) => {
    event.preventDefault();
    const button = event.submitter;
    const body = new FormData(form, button);
    fetch(form.action, { method: "POST", body, redirect: "manual", signal: AbortSignal.timeout(15000) });
    for (const one of form.querySelectorAll("button")) one.setAttribute("aria-pressed", one === button);
    apply(button);
  });
}

// Calls `changed` after the colours have changed, by this menu or by the system.
export function startTheme(changed) {
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
  startChoice(document.getElementById("theme"), (button) => {
    document.getElementById("dark").media = button.dataset.darkMedia;
    document.querySelector("meta[name=color-scheme]").content = button.dataset.scheme;
    changed();
  });
}

// Calls `changed` after another time zone was chosen.
export function startZone(changed) {
  startChoice(document.getElementById("zone"), (button) => {
    document.documentElement.dataset.zone = button.value;
    changed();
  });
}
