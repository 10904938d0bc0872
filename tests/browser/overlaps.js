// Finds texts of a page that are painted over each other or beyond the window's edges, one line each.
() => {
  const EDGE = 2; // pixels by which glyphs may reach into a neighbour's box
  const isShown = (element) => element.checkVisibility({ checkVisibilityCSS: true, checkOpacity: true });
  const clipped = (box, element) => {
    let [left, top, right, bottom] = [box.left, box.top, box.right, box.bottom];
    for (let at = element; at && at !== document.documentElement; at = at.parentElement) {
      const style = getComputedStyle(at);
      if (style.position === "fixed" || style.position === "sticky") return null; // meant to be above
      if (style.overflowX === "visible" && style.overflowY === "visible") continue;
      const edge = at.getBoundingClientRect();
      [left, right] = [Math.max(left, edge.left), Math.min(right, edge.right)];
      [top, bottom] = [Math.max(top, edge.top), Math.min(bottom, edge.bottom)];
    }
    return right - left > EDGE && bottom - top > EDGE ? { left, top, right, bottom } : null;
  };
  const wrong = [];
  const texts = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.data.trim() || !isShown(element)) continue;
    if (element.closest("script, option, select, textarea, svg, .visually-hidden, thead")) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects()) {
      const seen = clipped(box, element);
      if (seen) texts.push({ ...seen, element, text: node.data.trim().slice(0, 40) });
    }
  }
  const width = document.documentElement.clientWidth;
  for (const one of texts) {
    if (one.left < -EDGE || one.right > width + EDGE) wrong.push(`“${one.text}” is beyond the window`);
  }
  texts.sort((one, other) => one.top - other.top);
  texts.forEach((one, place) => {
    for (const other of texts.slice(place + 1)) {
      if (other.top >= one.bottom - EDGE) break;
      if (one.element === other.element) continue;
      const across = Math.min(one.right, other.right) - Math.max(one.left, other.left);
      const down = Math.min(one.bottom, other.bottom) - other.top;
      if (across > EDGE && down > EDGE * 2) wrong.push(`“${one.text}” is over “${other.text}”`);
    }
  });
  return [...new Set(wrong)].slice(0, 20);
}
