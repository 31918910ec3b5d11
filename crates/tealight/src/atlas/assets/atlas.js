"use strict";
const table = document.getElementById("atlas");
const rows = () => [...table.tBodies[0].rows].filter((row) => !row.classList.contains("limit"));
// A click sorts by the column, the better half first; a second click turns the order round. Missing values stay last.
for (const heading of table.tHead.querySelectorAll("th")) {
  heading.querySelector("button").addEventListener("click", () => {
    const at = heading.cellIndex;
    const first = heading.dataset.first || "descending";
    const other = first === "ascending" ? "descending" : "ascending";
    const order = heading.getAttribute("aria-sort") === first ? other : first;
    for (const one of table.tHead.querySelectorAll("th")) one.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", order);
    const sign = order === "ascending" ? 1 : -1;
    const value = (row) => row.cells[at].dataset.value;
    const compare = (a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === undefined || y === undefined) return (x === undefined) - (y === undefined);
      return sign * (at === 0 ? x.localeCompare(y) : Number(x) - Number(y));
    };
    for (const row of rows().sort(compare)) table.tBodies[0].append(row);
  });
}
document.getElementById("filter").addEventListener("input", (event) => {
  const typed = event.target.value.trim().toLowerCase();
  for (const row of rows()) row.hidden = !row.cells[0].dataset.value.toLowerCase().includes(typed);
});
