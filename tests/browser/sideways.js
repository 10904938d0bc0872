// Finds what does not fit into the width of the window: the page, cut texts, tables that scroll.
() => {
  const isShown = (element) => element.checkVisibility({ checkVisibilityCSS: true });
  const named = (element) => `${element.tagName.toLowerCase()}.${element.className}: ${element.textContent.trim().replace(/\s+/g, " ").slice(0, 40)}`;
  const wrong = [];
  if (document.documentElement.scrollWidth > innerWidth) wrong.push("it is wider than the window");
  for (const element of document.querySelectorAll("main *, header *")) {
    if (element.scrollWidth <= element.clientWidth + 2 || element.clientWidth < 8 || !isShown(element)) continue;
    // Charts and code scroll by themselves; jobs side by side have a column each.
    if (element.closest("svg, .js-plotly-plot, pre, .log, textarea, select, .visually-hidden")) continue;
    if (element.matches(":has(> .side-by-side)")) continue;
    const overflow = getComputedStyle(element).overflowX;
    const hasText = [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
    if (element.matches(".table-scroll")) wrong.push(`scrolls sideways: ${named(element)}`);
    else if (overflow !== "visible" && hasText && !element.title) wrong.push(`is cut: ${named(element)}`);
  }
  return wrong;
}
