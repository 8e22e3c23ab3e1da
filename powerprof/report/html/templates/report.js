"use strict";
// What the page does beyond being read: zoom and search in flame graphs, the download, and open details on paper.
(function () {
  function flame(figure) {
    const holder = figure.querySelector(".frames");
    const boxes = Array.from(holder.querySelectorAll(".f"));
    const info = figure.querySelector(".info");
    const search = figure.querySelector("input");
    const at = boxes.map((box) => ({
      box, x: Number(box.dataset.x), w: Number(box.dataset.w), d: Number(box.getAttribute("aria-level")),
    }));
    const index = new Map(at.map((one, number) => [one.box, number]));
    const tiny = 1e-6;
    let zoomed = at[0];
    let said = "";

    function say(text) { info.textContent = text || said || "\u00a0"; }

    function focus(one) {
      for (const other of holder.querySelectorAll('.f[tabindex="0"]')) other.tabIndex = -1;
      one.box.tabIndex = 0;
      one.box.focus({ preventScroll: false });
    }

    // Positions are CSS: the holder says which part is shown, every box is placed by calc().
    function zoom(one) {
      zoomed = one;
      holder.style.setProperty("--zx", String(one.x));
      holder.style.setProperty("--zw", String(one.w));
      for (const other of at) {
        const holds = other.d < one.d && other.x <= one.x + tiny && other.x + other.w >= one.x + one.w - tiny;
        const within = other.d >= one.d && other.x >= one.x - tiny && other.x + other.w <= one.x + one.w + tiny;
        other.box.classList.toggle("over", holds);
        other.box.classList.toggle("out", !holds && !within);
      }
      figure.dataset.zoomed = String(index.get(one.box));
    }

    function parent(one) {
      for (let number = index.get(one.box) - 1; number >= 0; number--) {
        if (at[number].d === one.d - 1) return at[number];
      }
      return one;
    }

    function sibling(one, way) {
      const above = parent(one);
      for (let number = index.get(one.box) + way; number >= 0 && number < at.length; number += way) {
        const other = at[number];
        if (other.d < one.d) break;
        if (other.d === one.d) return parent(other) === above && !other.box.classList.contains("out") ? other : one;
      }
      return one;
    }

    function child(one) {
      const next = at[index.get(one.box) + 1];
      return next && next.d === one.d + 1 ? next : one;
    }

    holder.addEventListener("keydown", (event) => {
      const one = at[index.get(event.target)];
      if (!one) return;
      const moves = {
        ArrowDown: () => focus(child(one)), ArrowUp: () => focus(parent(one)),
        ArrowRight: () => focus(sibling(one, 1)), ArrowLeft: () => focus(sibling(one, -1)),
        Home: () => focus(at[0]), Enter: () => zoom(one), " ": () => zoom(one),
        Escape: () => { zoom(at[0]); focus(one); },
      };
      if (moves[event.key]) { event.preventDefault(); moves[event.key](); }
    });
    holder.addEventListener("click", (event) => {
      const one = at[index.get(event.target)];
      if (one) { focus(one); zoom(one === zoomed ? at[0] : one); }
    });
    function about(box) { return index.has(box) ? box.textContent + box.dataset.info : ""; }

    holder.addEventListener("focusin", (event) => { said = about(event.target); say(); });
    holder.addEventListener("mouseover", (event) => say(about(event.target)));
    holder.addEventListener("mouseleave", () => say());
    figure.querySelector("button").addEventListener("click", () => { zoom(at[0]); search.value = ""; find(); });

    function find() {
      const wanted = search.value.trim().toLowerCase();
      let hits = 0;
      for (const one of at) {
        const hit = wanted !== "" && one.box.textContent.toLowerCase().includes(wanted);
        one.box.classList.toggle("hit", hit);
        if (hit) hits++;
      }
      said = wanted === "" ? "" : hits + (hits === 1 ? " box" : " boxes") + " with “" + search.value.trim() + "”";
      say();
    }
    search.addEventListener("input", find);
    search.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      const hit = at.find((one) => one.box.classList.contains("hit"));
      if (hit) { event.preventDefault(); zoom(at[0]); focus(hit); }
    });
    at[0].box.tabIndex = 0;
  }
  document.querySelectorAll(".flame").forEach(flame);

  // A column's heading sorts by it; rows without a figure stay last. The exact value counts, not the rounded one.
  function sortable(table) {
    const heads = Array.from(table.tHead.rows[0].cells);
    function valueOf(row, at) {
      const cell = row.cells[at];
      const figure = cell.querySelector("data");
      if (figure) return Number(figure.value);
      return cell.classList.contains("n") ? -Infinity : cell.textContent.trim().toLowerCase();
    }
    function sort(at) {
      const down = heads[at].getAttribute("aria-sort") !== "descending";
      const way = down ? -1 : 1;
      const rows = Array.from(table.tBodies[0].rows).map((row) => [valueOf(row, at), row]);
      rows.sort((a, b) => (a[0] === b[0] ? 0 : a[0] === -Infinity ? 1 : b[0] === -Infinity ? -1 : a[0] < b[0] ? -way : way));
      for (const one of rows) table.tBodies[0].append(one[1]);
      for (const head of heads) head.removeAttribute("aria-sort");
      heads[at].setAttribute("aria-sort", down ? "descending" : "ascending");
    }
    heads.forEach((head, at) => {
      if (head.classList.contains("draw")) return;
      head.tabIndex = 0;
      head.addEventListener("click", () => sort(at));
      head.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sort(at); }
      });
    });
  }
  document.querySelectorAll("table.sortable").forEach(sortable);

  const link = document.getElementById("download");
  if (link) {
    link.addEventListener("click", () => {
      // As it is: parsing and writing again would round what JavaScript cannot hold.
      const text = document.getElementById("record").textContent + "\n";
      const address = URL.createObjectURL(new Blob([text], { type: "application/json" }));
      link.href = address;
      setTimeout(() => URL.revokeObjectURL(address), 60000);
    });
  }

  window.addEventListener("beforeprint", () => {
    document.querySelectorAll("section > details").forEach((one) => { one.open = true; });
  });
})();
