// Changes the theme at once; the server keeps the choice in a cookie and sends it with every page.

function apply(form, button) {
  const sheet = document.getElementById("dark");
  sheet.media = button.dataset.darkMedia;
  document.querySelector("meta[name=color-scheme]").content = button.dataset.scheme;
  for (const one of form.querySelectorAll("button")) one.setAttribute("aria-pressed", one === button);
}

// Calls `changed` after the colours have changed, by this menu or by the system.
export function startTheme(changed) {
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
  const form = document.getElementById("theme");
  form?.addEventListener("submit", (event) => {
    event.preventDefault();
    const body = new FormData(form, event.submitter);
    fetch(form.action, { method: "POST", body, redirect: "manual", signal: AbortSignal.timeout(15000) });
    apply(form, event.submitter);
    changed();
  });
}
