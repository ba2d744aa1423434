"use strict";
for (const table of document.querySelectorAll(".sortable table")) {
  const body = table.tBodies[0];
  const value = (row, index) => {
    const cell = row.cells[index];
    const data = cell.querySelector("data");
    return data ? Number(data.value) : cell.querySelector(".missing") ? null : cell.textContent;
  };
  const before = (a, b) => {
    if (a === null || b === null) return (a === null) - (b === null);
    return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
  };
  for (const [index, head] of [...table.tHead.rows[0].cells].entries()) {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows];
      rows.sort((a, b) => {
        const [x, y] = [value(a, index), value(b, index)];
        return x === null || y === null || !down ? before(x, y) : before(y, x);
      });
      body.append(...rows);
    });
  }
}
