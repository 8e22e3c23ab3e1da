"use strict";
// What the page does beyond being read: zoom and search in flame graphs, kept in the address; and the
// download.
(function () {
  function flame(figure, number) {
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
    let lasting = "";

    function say(text) { info.textContent = text || lasting || "\u00a0"; }

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
      remember();
    }

    // What is seen is in the address, so that a link shows the same.
    function remember() {
      const state = new URLSearchParams();
      if (zoomed !== at[0]) state.set("box", String(index.get(zoomed.box)));
      if (search.value.trim()) state.set("find", search.value.trim());
      const some = state.toString() ? "#" + new URLSearchParams({ flame: String(number) }) + "&" + state : " ";
      history.replaceState(null, "", some === " " ? location.pathname + location.search : some);
    }

    function recall() {
      const state = new URLSearchParams(location.hash.slice(1));
      if (state.get("flame") !== String(number)) return;
      const box = at[Number(state.get("box") || 0)] || at[0];
      search.value = state.get("find") || "";
      // One of several graphs is shown at a time.
      const choice = figure.closest(".choice");
      if (choice) {
        const graphs = Array.from(choice.querySelectorAll("figure"));
        choice.querySelectorAll(':scope > input[type="radio"]')[graphs.indexOf(figure)].checked = true;
      }
      find();
      zoom(box);
      figure.scrollIntoView();
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

    holder.addEventListener("focusin", (event) => { lasting = about(event.target); say(); });
    holder.addEventListener("mouseover", (event) => say(about(event.target)));
    holder.addEventListener("mouseleave", () => say());
    figure.querySelector("button").addEventListener("click", () => { search.value = ""; find(); zoom(at[0]); });

    // A regular expression where it is one; C++ names with brackets are found as they stand as well.
    function matcher(wanted) {
      const plain = wanted.toLowerCase();
      let pattern = null;
      try { pattern = new RegExp(wanted, "i"); } catch (error) { pattern = null; }
      return (text) => text.toLowerCase().includes(plain) || (pattern !== null && pattern.test(text));
    }

    function find() {
      const wanted = search.value.trim();
      const matches = matcher(wanted);
      let hits = 0, share = 0, end = -1;
      for (const one of at) {
        const hit = wanted !== "" && matches(one.box.textContent);
        one.box.classList.toggle("hit", hit);
        if (!hit) continue;
        hits++;
        // A box below one that was counted is part of it: callers come before what they call.
        if (one.x >= end - tiny) { share += one.w; end = one.x + one.w; }
      }
      const boxes = hits + (hits === 1 ? " box" : " boxes") + " with “" + wanted + "”";
      lasting = wanted === "" ? "" : hits ? boxes + ": " + (100 * share).toFixed(1) + " % of the width" : boxes;
      say();
    }
    search.addEventListener("input", () => { find(); remember(); });
    search.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      const hit = at.find((one) => one.box.classList.contains("hit"));
      if (hit) { event.preventDefault(); zoom(at[0]); focus(hit); }
    });
    at[0].box.tabIndex = 0;
    recall();
    window.addEventListener("hashchange", recall);
  }
  document.querySelectorAll(".flame").forEach((figure, number) => flame(figure, number));

  // The lanes of any part of the window: the range says where it begins, the list how long it is.
  function lanes(figure) {
    const data = JSON.parse(figure.querySelector("script").textContent);
    const [from, length] = [figure.querySelector("input"), figure.querySelector("select")];
    const [detail, mark] = [figure.querySelector(".detail svg"), figure.querySelector(".window")];
    const cpus = Array.from(new Set(data.rows.map((row) => row[0]))).sort((a, b) => a - b);
    const most = 1500, left = 9, wide = 90.5;
    for (let ms = 10; ms < 2 * data.whole_ms; ms *= ms.toString()[0] === "2" ? 2.5 : 2) {
      length.add(new Option(ms < 1000 ? ms + " ms" : ms / 1000 + " s", ms, ms === 100, ms === 100));
    }

    function add(name, attributes, title) {
      const one = document.createElementNS("http://www.w3.org/2000/svg", name);
      for (const key of Object.keys(attributes)) one.setAttribute(key, attributes[key]);
      if (name === "text") one.textContent = title;
      else { const hint = document.createElementNS(one.namespaceURI, "title"); hint.textContent = title; one.append(hint); }
      detail.append(one);
    }

    function draw() {
      const span = Number(length.value);
      const begin = Math.max(0, data.whole_ms - span) * Number(from.value) / 1000;
      const place = (us) => left + wide * Math.min(1, Math.max(0, (us / 1000 - begin) / span));
      const box = (look, start, end, y, height, title) => {
        const [x, to] = [place(start), place(end)];
        if (to > x) add("rect", { class: look, x: x + "%", y, width: Math.max(0.1, to - x) + "%", height }, title);
      };
      detail.replaceChildren();
      cpus.forEach((cpu, row) => add("text", { x: 0, y: row * 34 + 20 }, "CPU " + cpu));
      const seen = data.rows.filter((row) => (row[3] || row[2]) >= begin * 1000 && row[1] <= (begin + span) * 1000);
      for (const [cpu, enter, exit, next, mechanism, word] of seen.slice(0, most)) {
        const top = cpus.indexOf(cpu) * 34, name = data.mechanisms[mechanism];
        const blame = name.replace("_", "-") + ": " + data.words[word];
        box("idle", enter, exit, top + 5, 20, "CPU " + cpu + " idle for " + (exit - enter) / 1000 + " ms, ended by " + blame);
        box("ran m-" + name, exit, next || exit + span, top + 1, 28, exit / 1000 + " ms: " + blame);
      }
      for (let part = 0; part <= 4; part++) {
        const anchor = part === 4 ? "end" : "middle", at = begin + span * part / 4;
        add("text", { x: left + wide * part / 4 + "%", y: cpus.length * 34 + 14, "text-anchor": anchor }, at.toFixed(span < 100 ? 1 : 0) + " ms");
      }
      const first = Math.min(1, begin / data.whole_ms), part = Math.min(1 - first, span / data.whole_ms);
      mark.setAttribute("x", left + wide * first + "%");
      mark.setAttribute("width", wide * part + "%");
      const more = seen.length > most ? ", the first " + most + " of " + seen.length : "";
      detail.setAttribute("aria-label", seen.length + " idle periods from " + begin.toFixed(0) + " ms for " + span + " ms" + more);
    }
    from.addEventListener("input", draw);
    length.addEventListener("change", draw);
    draw();
  }
  document.querySelectorAll(".lanes").forEach(lanes);

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

})();
