// Tables sort by the column whose heading is pressed; a second press turns the order round.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = head.querySelector("button");
    if (!button) return;
    button.addEventListener("click", () => {
      const text = head.dataset.kind === "text";
      const before = head.getAttribute("aria-sort");
      const ascending = before ? before === "descending" : text;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
      const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
      const rows = [...body.rows];
      rows.sort((a, b) => text ? key(a).localeCompare(key(b), undefined, { numeric: true }) : Number(key(a)) - Number(key(b)));
      if (!ascending) rows.reverse();
      body.append(...rows);
    });
  });
}
