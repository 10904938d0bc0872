// Looks at a page as an accessibility checker does and gives what is wrong, one line each.
() => {
  const wrong = [];
  const isShown = (element) => element.checkVisibility({ checkVisibilityCSS: true, checkOpacity: true });
  const named = (element) => {
    const byId = (element.getAttribute("aria-labelledby") ?? "").split(" ").map((id) => document.getElementById(id)?.textContent ?? "").join("");
    const label = element.labels?.length ? [...element.labels].map((each) => each.textContent).join("") : "";
    return (byId || element.getAttribute("aria-label") || label || element.textContent || element.getAttribute("alt") || "").trim();
  };
  const path = (element) => `${element.tagName.toLowerCase()}${element.id ? `#${element.id}` : ""}.${element.className}`;

  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  ids.filter((id, place) => ids.indexOf(id) !== place).forEach((id) => wrong.push(`id ${id} is there twice`));
  for (const name of ["aria-describedby", "aria-labelledby", "for"]) {
    for (const element of document.querySelectorAll(`[${name}]`)) {
      for (const id of element.getAttribute(name).split(" ")) {
        if (!document.getElementById(id)) wrong.push(`${name} of ${path(element)} names ${id}, which is not there`);
      }
    }
  }
  for (const element of document.querySelectorAll("input:not([type=hidden]), select, textarea, button, a[href], summary, [role=img], [role=region]")) {
    if (isShown(element) && !named(element)) wrong.push(`${path(element)} has no name`);
  }
  for (const image of document.querySelectorAll("img:not([alt])")) wrong.push(`${path(image)} has no alt`);
  for (const cell of document.querySelectorAll("th:not([scope])")) if (isShown(cell)) wrong.push(`${path(cell)} has no scope`);
  for (const role of ["main", "header", "footer"]) if (document.querySelectorAll(role).length !== 1) wrong.push(`not one ${role}`);
  if (document.querySelectorAll("h1").length !== 1) wrong.push("not one h1");
  let last = 0;
  for (const heading of document.querySelectorAll("h1, h2, h3, h4")) {
    const level = Number(heading.tagName[1]);
    if (isShown(heading) && level > last + 1) wrong.push(`h${level} “${heading.textContent.trim()}” follows h${last}`);
    if (isShown(heading)) last = level;
  }
  for (const element of document.querySelectorAll("*")) {
    const style = getComputedStyle(element);
    const scrolls = /auto|scroll/.test(style.overflowX + style.overflowY)
      && (element.scrollWidth > element.clientWidth + 1 || element.scrollHeight > element.clientHeight + 1);
    if (scrolls && isShown(element) && element !== document.documentElement && element.tabIndex < 0
      && !document.querySelector(`[role=combobox][aria-controls="${element.id}"]`)
      && !element.querySelector("a, button, input, select, textarea, [tabindex]")) wrong.push(`${path(element)} scrolls but not by keyboard`);
  }

  // Contrast of every text against what is painted behind it.
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const over = (top, ground) => [0, 1, 2].map((i) => (top[i] * top[3] + ground[i] * (255 - top[3])) / 255).concat(255);
  const luminance = (colour) => [0.2126, 0.7152, 0.0722].reduce((sum, weight, i) => {
    const value = colour[i] / 255;
    return sum + weight * (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  }, 0);
  const ground = (element) => {
    // The text of a chart's bar stands on the bar, and a label on its box.
    const bar = element.closest(".bars .point")?.querySelector("path")
      ?? element.closest(".annotation-text-g")?.querySelector(".bg");
    if (bar) return rgba(getComputedStyle(bar).fill);
    const layers = [];
    for (let at = element; at; at = at.parentElement) {
      const layer = rgba(getComputedStyle(at).backgroundColor);
      if (layer[3]) layers.push(layer);
      if (layer[3] === 255) break;
    }
    return layers.reduceRight((below, layer) => over(layer, below), [255, 255, 255, 255]);
  };
  const seen = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.data.trim() || seen.has(element) || !isShown(element) || element.closest("script, option, .visually-hidden, [disabled]")) continue;
    seen.add(element);
    const style = getComputedStyle(element);
    const back = ground(element);
    const isSvg = element instanceof SVGElement;
    const front = over(rgba(isSvg ? style.fill : style.color), back);
    const [low, high] = [luminance(front), luminance(back)].sort((a, b) => a - b);
    const ratio = (high + 0.05) / (low + 0.05);
    const isLarge = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (isLarge ? 3 : 4.5)) wrong.push(`contrast ${ratio.toFixed(2)} of “${node.data.trim().slice(0, 30)}” in ${path(element)}`);
  }

  for (const box of document.querySelectorAll("[type=checkbox], [type=radio]")) {
    if (!isShown(box) || !box.labels.length) continue;
    const [at, label] = [box, box.labels[0]].map((one) => one.getClientRects()[0]);
    if (label.bottom < at.top || at.bottom < label.top) wrong.push(`${path(box)} is not beside its label`);
  }

  // Targets for a finger or a shaky hand: 24 by 24 pixels, links inside text excepted.
  for (const element of document.querySelectorAll("button, .button, .nav a, input:not([type=hidden]):not([type=checkbox]):not([type=radio]), select")) {
    const box = element.getBoundingClientRect();
    if (isShown(element) && box.width && (box.height < 24 || box.width < 24)) wrong.push(`${path(element)} is ${box.width} by ${box.height}`);
  }
  return wrong;
}
