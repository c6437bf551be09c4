"use strict";
/* Unpacks plotly.js, draws every figure, follows the reader's colour scheme, and prints in ink. */
(async () => {
  const page = document.documentElement;
  const fail = (text) => {
    for (const at of document.querySelectorAll(".figure")) at.textContent = text;
    page.dataset.ready = "failed";
  };
  const themes = {
    light: { ink: "#39424e", soft: "#5b6675", grid: "#e3e7ed", card: "#ffffff", edge: "#cfd6e0" },
    dark: { ink: "#d5dbe5", soft: "#9aa6b6", grid: "#2b3442", card: "#1d2531", edge: "#3a4657" },
  };
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  const colours = (printing) => themes[scheme.matches && !printing ? "dark" : "light"];

  /* Everything of a layout that has a colour of the page; annotations inherit the font. */
  const dressed = (layout, theme) => {
    const change = {
      "font.color": theme.ink, "legend.font.color": theme.ink,
      "hoverlabel.bgcolor": theme.card, "hoverlabel.bordercolor": theme.edge, "hoverlabel.font.color": theme.ink,
    };
    for (const name of Object.keys(layout).filter((key) => /^[xy]axis\d*$/.test(key))) {
      for (const line of ["gridcolor", "linecolor", "tickcolor", "zerolinecolor"]) change[`${name}.${line}`] = theme.grid;
    }
    return change;
  };
  const set = (object, path, value) => {
    const names = path.split(".");
    const last = names.pop();
    for (const name of names) object = object[name] ??= {};
    object[last] = value;
  };

  /* A click on a head sorts by it, a second one backwards; numbers fall first, and what is not observed is last. */
  const value = (row, column) => {
    const cell = row.cells[column];
    if (cell.dataset.key !== undefined) return Number(cell.dataset.key);
    return cell.classList.contains("name") && cell.textContent !== "not observed" ? cell.textContent : null;
  };
  const compare = (one, other) => (typeof one === "string" ? one.localeCompare(other) : one - other);
  for (const button of document.querySelectorAll("table.sortable th button")) {
    button.addEventListener("click", () => {
      const head = button.parentElement;
      const body = head.closest("table").tBodies[0];
      const column = head.cellIndex;
      const rows = [...body.rows].map((row) => [value(row, column), row]);
      const numbers = rows.some(([key]) => typeof key === "number");
      const rising = head.ariaSort ? head.ariaSort !== "ascending" : !numbers;
      for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", rising ? "ascending" : "descending");
      rows.sort(([one], [other]) =>
        one === null || other === null ? (one === null) - (other === null) : compare(one, other) * (rising ? 1 : -1));
      body.append(...rows.map(([, row]) => row));
    });
  }

  if (typeof DecompressionStream === "undefined") return fail("This browser is too old to draw the figures; the numbers are in the tables.");
  const packed = document.getElementById("plotly").textContent.trim();
  const bytes = Uint8Array.from(atob(packed), (char) => char.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const library = document.createElement("script");
  library.textContent = await new Response(stream).text();
  document.head.append(library);
  if (typeof Plotly === "undefined") return fail("The browser refused to run the drawing library; the numbers are in the tables.");

  const config = { responsive: true, displaylogo: false, displayModeBar: false, doubleClick: "reset" };
  const drawn = [];
  for (const at of document.querySelectorAll(".figure")) {
    const figure = JSON.parse(document.getElementById(at.dataset.figure).textContent);
    const narrow = at.clientWidth < 620;
    if (narrow) {
      const named = new Set(figure.data.filter((trace) => trace.showlegend !== false).map((trace) => trace.name)).size;
      figure.layout.height += 17 * named;
      set(figure.layout, "font.size", 11);
      for (const name of Object.keys(figure.layout).filter((key) => /^[xy]axis\d*$/.test(key))) {
        const title = figure.layout[name].title;
        if (title && name[0] === "x" && figure.layout[name].side !== "top") title.text = title.text.replace(/(.{14,}?) /g, "$1<br>");
        if (name[0] === "x" && !figure.layout[name].tickvals) Object.assign(figure.layout[name], { nticks: 5, tickangle: 0, dtick: undefined });
        set(figure.layout, `${name}.tickfont.size`, 10);
      }
      set(figure.layout, "margin.l", 4);
      set(figure.layout, "margin.r", 4);
    }
    for (const [path, value] of Object.entries(dressed(figure.layout, colours(false)))) set(figure.layout, path, value);
    at.textContent = "";
    await Plotly.newPlot(at, figure.data, figure.layout, config);
    drawn.push(at);
    const frame = at.closest(".frame");
    if (frame && at.scrollHeight > frame.clientHeight + 40) frame.classList.add("cut");
  }
  for (const button of document.querySelectorAll("button.more")) {
    button.addEventListener("click", () => button.closest(".frame").classList.replace("cut", "whole"));
  }

  const dress = (printing) => Promise.all(drawn.map((at) => Plotly.relayout(at, dressed(at.layout, colours(printing)))));
  scheme.addEventListener("change", () => dress(false));
  addEventListener("beforeprint", () => {
    for (const closed of document.querySelectorAll("details:not([open])")) closed.open = true;
    dress(true);
  });
  addEventListener("afterprint", () => dress(false));

  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries.filter((one) => one.isIntersecting)) {
      for (const link of links.values()) link.removeAttribute("aria-current");
      links.get(entry.target.id)?.setAttribute("aria-current", "true");
    }
  }, { rootMargin: "-15% 0px -75% 0px" });
  for (const id of links.keys()) {
    const target = document.getElementById(id);
    if (target) seen.observe(target);
  }
  page.dataset.ready = "drawn";
})();
