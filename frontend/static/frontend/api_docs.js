// Dark colours of the API's documentation, by the chosen theme or by the system.

const root = document.documentElement;
const isDark = window.matchMedia("(prefers-color-scheme: dark)");

function apply() {
  const { theme } = root.dataset;
  root.classList.toggle("dark-mode", theme === "dark" || (theme === "system" && isDark.matches));
}

isDark.addEventListener("change", apply);
apply();
