// Ticks on the list of jobs: all, ranges with the shift key, a count, a question before cancelling.

const bulk = document.getElementById("bulk");
const tickAll = document.getElementById("tick-all");
let last = null;

function boxes() {
  return [...document.querySelectorAll('input[form="bulk"]')];
}

function count() {
  const num = boxes().filter((box) => box.checked).length;
  tickAll.checked = num === boxes().length;
  tickAll.indeterminate = num > 0 && !tickAll.checked;
  const text = num === 1 ? "1 job ticked" : `${num} jobs ticked`;
  const shown = document.getElementById("bulk-count");
  if (shown.textContent !== text) shown.textContent = text; // it would be read out again
}

// A refresh takes jobs off the list, and their ticks with them.
function countAgain() {
  if (document.getElementById("bulk-count").textContent.endsWith("ticked")) count();
}

function tickRange(event) {
  const all = boxes();
  const place = all.indexOf(event.target);
  if (place < 0) return;
  const start = event.shiftKey ? all.indexOf(last) : -1;
  if (start >= 0) {
    const [low, high] = [Math.min(start, place), Math.max(start, place)];
    for (const box of all.slice(low, high + 1)) box.checked = event.target.checked;
  }
  last = event.target;
  count();
}

if (bulk) {
  tickAll.parentElement.hidden = false;
  tickAll.addEventListener("change", () => {
    for (const box of boxes()) box.checked = tickAll.checked;
    count();
  });
  // Space on a box with the shift key held is a click with `shiftKey`, too.
  document.getElementById("jobs").addEventListener("click", tickRange);
  new MutationObserver(countAgain).observe(document.getElementById("jobs"), { childList: true, subtree: true });
  bulk.addEventListener("submit", (event) => {
    const ticked = boxes().filter((box) => box.checked);
    if (!ticked.length) {
      event.preventDefault();
      document.getElementById("bulk-count").textContent = "Tick at least one job.";
      return;
    }
    if (event.submitter?.value !== "cancel") return;
    const names = ticked.slice(0, 10).map((box) => `#${box.value}`).join(", ");
    const others = ticked.length > 10 ? ` and ${ticked.length - 10} more` : "";
    if (!window.confirm(`Cancel ${names}${others}? This cannot be undone.`)) event.preventDefault();
  });
}
