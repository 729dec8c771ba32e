"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const make = (tag, properties = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  };
  const bytes = (blob) => Uint8Array.from(atob(data.blobs[blob]), (c) => c.charCodeAt(0));
  const decoded = new Map();
  function numbers(blob) {
    // 16-bit fractions of one, or numbers that were computed here
    if (blob instanceof Float32Array) return blob;
    if (!decoded.has(blob)) {
      const view = new DataView(bytes(blob).buffer),
        out = new Float32Array(view.byteLength / 2);
      for (let i = 0; i < out.length; i++) out[i] = view.getUint16(2 * i, true) / data.unit;
      decoded.set(blob, out);
    }
    return decoded.get(blob);
  }

  // ---- What is shown: numbers that the address keeps. `over` and `under` are where the pointer is, or null. ----
  const state = {
    ...{ input: 0, answer: 0, attention: 0, layer: 0, head: 0, query: 0, off: new Set(), words: true },
    sort: "", // the score that sorts the tiles; "" is by layer
  };
  let over = null,
    under = null,
    tiles = [],
    scale = 1,
    listed = [],
    elements = { queries: [], keys: [] },
    parts = [];
  const answer = () => data.inputs[state.input].answers[state.answer];
  const view = () => {
    const attention = answer().attentions[state.attention];
    return (state.words && inWords(attention)) || attention;
  };
  const size = () => [view().queries.tokens.length, view().keys.tokens.length];
  const isImage = () => view().keys.image !== null;
  const overTime = () => view().kind === "memory";
  const keysMayBeOff = () => !overTime() && view().without_key !== "unknown";
  const query = () => (over === null ? state.query : over);

  // ---- Word pieces: the weights of a word are the sum over its pieces as keys, the mean over them as queries ----
  function wordsOf({ tokens, image, points }) {
    // [[piece, ...], ...], or null where no token is marked as a part of a word
    const special = (token) => /^(<[^<>]+>|\[[A-Z]+\])$/.test(token);
    const spaced = tokens.some((token) => token.startsWith("\u2581") && token.length > 1);
    const within = (token, i) =>
      i > 0 &&
      !special(token) &&
      !special(tokens[i - 1]) &&
      (spaced ? !token.startsWith("\u2581") : token.startsWith("##") || tokens[i - 1].endsWith("@@"));
    if (image !== null || points || !tokens.some(within)) return null;
    const words = [];
    tokens.forEach((token, i) => (within(token, i) ? words[words.length - 1].push(i) : words.push([i])));
    return words;
  }
  const joined = new Map();
  function inWords(attention) {
    // the attention between words, or null where there are no pieces to join
    if (!joined.has(attention)) joined.set(attention, join(attention));
    return joined.get(attention);
  }
  function join(attention) {
    const { queries, keys, weights, rollout, kind } = attention;
    if (kind === "memory" || kind === "kernel") return null;
    const [from, to] = [queries, keys].map(wordsOf);
    if (!from && !to) return null;
    const alone = (side) => side.tokens.map((_, i) => [i]),
      [rows, columns] = [from ?? alone(queries), to ?? alone(keys)],
      [Q, K] = [queries.tokens.length, keys.tokens.length];
    const reduced = (all) => {
      const out = new Float32Array((all.length / (Q * K)) * rows.length * columns.length);
      for (let m = 0, i = 0; m < all.length; m += Q * K)
        for (const row of rows)
          for (const column of columns) {
            for (const q of row) for (const k of column) out[i] += all[m + q * K + k] / row.length;
            i++;
          }
      return out;
    };
    const named = (side, words) => {
      const clean = (token) => token.replace(/^\u2581|^##|@@$/g, "");
      const tokens = words.map((word) =>
        word.length > 1 || side.tokens[word[0]].length > 1
          ? word.map((i) => clean(side.tokens[i])).join("")
          : side.tokens[word[0]],
      );
      return { ...side, tokens, repeated: repeatedIn(tokens) };
    };
    return {
      ...attention,
      queries: named(queries, rows),
      keys: named(keys, columns),
      weights: reduced(numbers(weights)),
      rollout: rollout === null ? null : reduced(numbers(rollout)),
      lens: attention.lens.map((read) => rows.map((row) => read[row.at(-1)])), // what follows the whole word
    };
  }
  const repeatedIn = (tokens) => new Set(tokens.filter((token, i) => tokens.indexOf(token) !== i));

  // ---- Weights ----
  function tileOf(layer, head, name, all, mayChange) {
    // the weights [Q, K] of a head, without the keys that are off
    const [Q, K] = size(),
      values = Float32Array.from(all),
      lost = new Float32Array(Q);
    for (let q = 0; mayChange && q < Q && state.off.size; q++) {
      const sink = 1 - total(values.subarray(q * K, (q + 1) * K)); // the weight on no key
      for (const k of state.off) {
        lost[q] += values[q * K + k];
        values[q * K + k] = 0;
      }
      if (view().without_key === "unchanged") continue;
      const left = total(values.subarray(q * K, (q + 1) * K)) + (sink > K / data.unit ? sink : 0); // more than rounding
      for (let k = 0; k < K; k++) values[q * K + k] = left > 1e-9 ? values[q * K + k] / left : 0;
    }
    return { layer, head, name, values, lost, entropy: meanEntropy(values, Q, K) };
  }
  const total = (row) => row.reduce((sum, w) => sum + w, 0);
  function entropy(row) {
    // of the weights divided by their sum
    const mass = total(row);
    let bits = 0;
    for (const w of row) if (w > 0) bits -= (w / mass) * Math.log2(w / mass);
    return bits;
  }
  function meanEntropy(values, Q, K) {
    let bits = 0,
      rows = 0;
    for (let q = 0; q < Q; q++) {
      const row = values.subarray(q * K, (q + 1) * K);
      if (row.some((w) => w > 0)) {
        bits += entropy(row);
        rows++;
      }
    }
    return rows ? bits / rows : 0;
  }
  function compute() {
    // all tiles of the attention that is chosen
    const { layers, heads, weights, rollout, kind } = view(),
      [Q, K] = size(),
      all = numbers(weights);
    tiles = [];
    for (let l = 0; l < layers; l++) {
      const own = heads.map((name, h) => {
        const from = (l * heads.length + h) * Q * K;
        return tileOf(l, h, name, all.subarray(from, from + Q * K), true);
      });
      tiles.push(...own);
      if (own.length > 1 && kind !== "memory" && kind !== "kernel") {
        const mean = new Float32Array(Q * K);
        for (const tile of own) for (let i = 0; i < mean.length; i++) mean[i] += tile.values[i] / own.length;
        const lost = own[0].lost.map((_, q) => own.reduce((sum, tile) => sum + tile.lost[q], 0) / own.length);
        tiles.push({ layer: l, head: "mean", name: "mean", values: mean, lost, entropy: meanEntropy(mean, Q, K) });
      }
    }
    if (rollout !== null) tiles.push(tileOf("rollout", 0, "rollout", numbers(rollout), false));
    const most = tiles.reduce((so_far, tile) => tile.values.reduce((a, b) => Math.max(a, b), so_far), 0);
    scale = Math.min(1, Math.max(most, 4 / K)); // where all keys are looked at alike, none is dark
    const used = new Uint8Array(K); // of a large memory, only what a head was ever at
    for (const tile of tiles)
      tile.values.forEach((w, i) => {
        if (w > 0.02) used[i % K] = 1;
      });
    listed = Array.from({ length: K }, (_, k) => k).filter(
      (k) => kind !== "memory" || K <= 40 || used[k] || state.off.has(k),
    );
    if (!chosen()) [state.layer, state.head] = [view().layers - 1, 0];
  }
  const chosen = () => tiles.find((tile) => tile.layer === state.layer && tile.head === state.head);
  const rowOf = (tile, q) => tile.values.subarray(q * size()[1], (q + 1) * size()[1]);
  const shade = (w) => Math.sqrt(Math.min(w / scale, 1));
  function best(row) {
    let top = 0;
    for (let k = 1; k < row.length; k++) if (row[k] > row[top]) top = k;
    return top;
  }

  // ---- Words ----
  const marks = { "": "∅", "\n": "⏎", "\t": "⇥" };
  const shown = (token) =>
    marks[token] ?? (token.trim() === "" ? "␣".repeat(token.length) : token.replace("\u2581", "_"));
  const short = (token) => shown(token.replace(/^row (\d+), column (\d+)$/, "r$1 c$2"));
  function spoken(side, i, open = "", close = "") {
    // a token's name, with its place where there are several of it
    const token = side.tokens[i],
      name = open + (token.trim() === "" ? "space" : token) + close;
    return side.repeated.has(token) ? `${name} at ${i + 1}` : name;
  }
  const quoted = (side, i) => spoken(side, i, "“", "”");
  for (const one of data.inputs)
    for (const a of one.answers)
      for (const t of a.attentions)
        for (const side of [t.queries, t.keys]) {
          side.repeated = repeatedIn(side.tokens);
        }
  const exact = (w) => (w === 0 ? "0" : w.toFixed(4)); // 0 where the weight is exactly zero
  const percent = (w) => w.toFixed(w < 0.0995 ? 3 : 2);
  const scoreOf = (tile) => view().scores[state.sort]?.[tile.layer]?.[tile.head] ?? null;
  function inOrder() {
    // the tiles by score, the highest first and equal ones as they were; those without a score are last
    const last = (tile) => scoreOf(tile) ?? -1;
    return state.sort in view().scores ? [...tiles].sort((a, b) => last(b) - last(a)) : tiles;
  }
  const named = (tile) =>
    tile.layer === "rollout"
      ? "Rollout"
      : (view().layers > 1 ? `Layer ${tile.layer + view().lowest}, ` : "") +
        (tile.head === "mean" ? "mean of the heads" : tile.name);
  const begun = (text) => text[0].toUpperCase() + text.slice(1);
  function sentence() {
    const tile = chosen(),
      q = query(),
      { queries, keys } = view(),
      row = rowOf(tile, q);
    const off = under !== null && state.off.has(under) && tile.layer !== "rollout";
    if (under !== null && !off) {
      const column = Array.from({ length: size()[0] }, (_, i) => tile.values[i * size()[1] + under]);
      const top = best(column);
      return (
        `${begun(named(tile))}: ${quoted(keys, under)} gets most of the attention of ` +
        `${quoted(queries, top)} ${percent(column[top])}, ` +
        `and ${percent(row[under])} of that of ${quoted(queries, q)}.`
      );
    }
    const order = Array.from(row.keys())
      .sort((a, b) => row[b] - row[a])
      .slice(0, 3)
      .filter((k) => row[k] >= 0.0005);
    const told = order.map((k) => `${quoted(keys, k)} ${percent(row[k])}`).join(", ") || "nothing";
    const gone =
      state.off.size && tile.layer !== "rollout"
        ? ` ${percent(tile.lost[q])} of its weight was on ` +
          (off && state.off.size === 1 ? `${quoted(keys, under)}, which is off.` : "keys that are off.")
        : "";
    const pooled = view().values ? ` Estimate ${pool(row).toFixed(3)}.` : "";
    const who = overTime()
      ? `${named(tile)} at time step ${queries.tokens[q]} is at location`
      : `${named(tile)}: ${quoted(queries, q)} attends to`;
    return `${begun(who)} ${told}. Entropy ${entropy(row).toFixed(2)} bits.${pooled}${gone}`;
  }
  const pool = (row) => row.reduce((sum, w, k) => sum + w * view().values[k], 0);

  // ---- Drawing ----
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);
  const color = (name) => css(name).split(",").map(Number);
  function paint(canvas, width, height, value, ink) {
    // a pixel a number
    canvas.width = width;
    canvas.height = height;
    const context = canvas.getContext("2d"),
      picture = context.createImageData(width, height);
    for (let y = 0, i = 0; y < height; y++)
      for (let x = 0; x < width; x++, i += 4) {
        picture.data[i] = ink[0];
        picture.data[i + 1] = ink[1];
        picture.data[i + 2] = ink[2];
        picture.data[i + 3] = 255 * value(x, y);
      }
    context.putImageData(picture, 0, 0);
  }
  function paintMatrix(canvas, tile, ink) {
    const [Q, K] = size();
    if (overTime()) paint(canvas, Q, listed.length, (x, y) => shade(tile.values[x * K + listed[y]]), ink);
    else paint(canvas, K, Q, (x, y) => shade(tile.values[y * K + x]), ink);
  }
  function paintOver(canvas, row, ink) {
    // a row over the patches of an image
    const g = view().keys.grid,
      first = row.length - g * g;
    paint(canvas, g, g, (x, y) => 0.9 * shade(row[first + y * g + x]), ink);
  }
  const source = (blob) => `data:image/png;base64,${data.blobs[blob]}`;

  function drawSide(which) {
    const box = $(which),
      side = view()[which],
      title = $(`${which}-title`);
    const buttons = side.tokens.map((token, i) => {
      const button = make("button", { type: "button", className: "token", textContent: shown(token), tabIndex: -1 });
      button.dataset.i = i;
      button.setAttribute("aria-label", spoken(side, i));
      if (which === "queries" && view().lens.length) button.append(make("span", { className: "lens" }));
      return button;
    });
    elements[which] = buttons;
    box.className = side.tokens.length > 60 || side.points || overTime() ? "tokens many" : "tokens";
    if (side.image === null) box.replaceChildren(...buttons);
    else {
      const g = side.grid,
        first = buttons.length - g * g,
        cells = make("div", { className: "cells" }, ...buttons.slice(first));
      buttons.slice(first).forEach((button) => {
        button.textContent = "";
      });
      cells.style.setProperty("--g", g);
      const image = make("img", { src: source(side.image), alt: `the image, ${g} by ${g} patches` });
      box.replaceChildren(...buttons.slice(0, first), make("div", { className: "picture" }, image, cells));
    }
    box.dataset.step = side.image === null ? 1 : side.grid;
    title.textContent =
      which === "queries"
        ? overTime()
          ? "Time step"
          : "Query"
        : overTime()
          ? "Locations of the memory"
          : "Keys";
  }
  function drawLens() {
    // what the lens reads after the layer of the chosen tile, under each token; after all layers in a table
    const { lens, layers, lowest, queries } = view(),
      layer = state.layer === "rollout" ? layers - 1 : state.layer;
    $("lens-hint").hidden = $("lens").hidden = $("about-lens").hidden = !lens.length;
    if (!lens.length) return;
    elements.queries.forEach((button, i) => {
      const read = Object.assign(button.lastElementChild, { textContent: shown(lens[layer][i]) });
      read.title = lens[layer][i];
      button.setAttribute("aria-label", `${spoken(queries, i)}, the lens reads ${shown(lens[layer][i])}`);
    });
    $("lens-hint").textContent =
      `Under each token: what the model would say next if layer ${layer + lowest} were its last (logit lens).`;
    if (!$("lens").open) return;
    const cell = (textContent, scope) => make(scope ? "th" : "td", scope ? { textContent, scope } : { textContent });
    const line = (name, texts, scope) => make("tr", {}, cell(name, "row"), ...texts.map((t) => cell(shown(t), scope)));
    const rows = lens.map((read, l) => line(`layer ${l + lowest}`, read));
    $("lens").lastElementChild.replaceChildren(make("table", {}, line("", queries.tokens, "col"), ...rows));
  }
  function drawTiles() {
    const box = $("tiles"),
      ink = color(isImage() ? "--over" : "--ink"),
      [Q, K] = size();
    box.replaceChildren();
    const sorted = state.sort in view().scores;
    parts = inOrder().map((tile, i) => {
      const canvas = make("canvas"),
        mark = make("span", { className: "mark" });
      canvas.setAttribute("aria-hidden", "true");
      const thumb = make("span", { className: "thumb" }),
        name = make("span", { className: "name", textContent: sorted ? named(tile) : tile.name });
      const told = make("span", { className: "told" }),
        bits = make("span", { className: "told" });
      if (isImage()) thumb.append(make("img", { src: source(view().keys.image), alt: "" }), canvas);
      else {
        const [wide, high] = overTime() ? [Q, Math.min(listed.length, Q / 2)] : [K, Q];
        canvas.style.aspectRatio = `${wide} / ${Math.min(Math.max(high, wide / 4), 2 * wide)}`;
        thumb.append(canvas, mark);
        paintMatrix(canvas, tile, ink);
      }
      const button = make("button", { type: "button", className: "tile", tabIndex: -1 }, thumb, name, told, bits);
      const less = changeWithout(tile);
      if (less !== null)
        button.append(
          make("span", { className: "told", textContent: `off: ${less > 0 ? "+" : ""}${less.toFixed(2)}` }),
        );
      const score = scoreOf(tile);
      if (score !== null)
        button.append(make("span", { className: "told", textContent: `score ${score.toFixed(2)}` }));
      if (sorted) (i ? box.lastElementChild : rowBox(`by ${state.sort} score`, box)).append(button);
      else if (tile.layer === "rollout") rowBox("all layers", box).append(button);
      else if (tile.head === 0)
        rowBox(view().layers > 1 ? `layer ${tile.layer + view().lowest}` : "", box).append(button);
      else box.lastElementChild.append(button);
      return { tile, button, canvas, mark, told, bits };
    });
    box.className = overTime() ? "wide" : view().heads.length < 9 ? "few" : "";
    box.style.setProperty("--columns", view().heads.length + 1);
  }
  function changeWithout(tile) {
    // what the answer's measure gains or loses without a head, or null
    const without = view().without?.[tile.layer]?.[tile.head] ?? null;
    return without === null ? null : without - answer().value;
  }
  function rowBox(title, box) {
    box.append(make("div", { className: "row" }, make("h3", { textContent: title })));
    return box.lastElementChild;
  }

  let cell = [0, 0, 0, 0]; // width, height of a cell of the map, and where the first begins
  function drawMap() {
    // the chosen head, large, with its tokens
    const [Q, K] = size(),
      canvas = $("map-canvas"),
      time = overTime(),
      [columns, rows] = time ? [Q, listed.length] : [K, Q];
    const side = (which) => view()[which],
      [across, down] = time ? ["queries", "keys"] : ["keys", "queries"];
    const room = Math.max(280, $("stage").clientWidth),
      font = "11px system-ui, sans-serif";
    const context = canvas.getContext("2d");
    context.font = font;
    const longest = (tokens) =>
      Math.min(110, Math.max(12, ...tokens.map((t) => context.measureText(short(t)).width)) + 6);
    const names = time ? listed.map((k) => side(down).tokens[k]) : side(down).tokens;
    const left = longest(names),
      top = time ? 16 : longest(side(across).tokens);
    const wide = Math.max(time ? 3 : 5, Math.min(time ? 14 : 24, (room - left - 4) / columns));
    const high = time ? Math.max(2, Math.min(8, 340 / rows)) : Math.max(5, Math.min(20, 480 / rows, wide * 1.5));
    cell = [wide, high, left, top];
    const dense = window.devicePixelRatio || 1,
      [width, height] = [left + wide * columns + 2, top + high * rows + 2];
    canvas.width = width * dense;
    canvas.height = height * dense;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    context.scale(dense, dense);
    const tile = chosen(),
      ink = color("--ink").join(","),
      at = (start, step, i) => Math.round((start + step * i) * dense) / dense;
    for (let y = 0; y < rows; y++)
      for (let x = 0; x < columns; x++) {
        const a = shade(tile.values[time ? x * K + listed[y] : y * K + x]);
        if (a < 0.01) continue;
        context.fillStyle = `rgba(${ink},${a})`;
        context.fillRect(
          at(left, wide, x),
          at(top, high, y),
          at(left, wide, x + 1) - at(left, wide, x),
          at(top, high, y + 1) - at(top, high, y),
        );
      }
    context.strokeStyle = css("--line");
    context.strokeRect(left - 0.5, top - 0.5, wide * columns + 1, high * rows + 1);
    context.fillStyle = css("--faint");
    context.font = font;
    context.textBaseline = "middle";
    const fit = (text) => {
      while (text.length > 1 && context.measureText(text).width > 104) text = text.slice(0, -2) + "…";
      return text;
    };
    const every = (space) => Math.max(1, Math.ceil(12 / space));
    context.textAlign = "right";
    names.forEach((t, i) => {
      if (i % every(high) === 0) context.fillText(fit(short(t)), left - 4, top + (i + 0.5) * high);
    });
    side(across).tokens.forEach((t, i) => {
      if (i % (time ? every(wide / 2) : every(wide))) return;
      context.save();
      context.translate(left + (i + 0.5) * wide, top - 4);
      if (time) context.textAlign = "center";
      else {
        context.rotate(-Math.PI / 2);
        context.textAlign = "left";
      }
      context.fillText(fit(short(t)), 0, time ? -3 : 0);
      context.restore();
    });
    const { measure, value } = answer(),
      less = changeWithout(tile);
    document.title = `${begun(named(tile))}: ${data.title}`;
    $("map-title").textContent =
      `${begun(named(tile))}: ${tile.entropy.toFixed(2)} bits on average` +
      (time ? "; time from left to right, one row for each location." : "; rows are queries, columns are keys.") +
      (less === null
        ? ""
        : ` Without this head ${measure} of this output ${measure === "the log-odds" ? "are" : "is"} ` +
          `${(value + less).toFixed(2)} ` +
          `instead of ${value.toFixed(2)}.`);
    canvas.setAttribute("aria-label", `Weights of ${named(tile)}: ${Q} queries, ${K} keys`);
    for (const legend of document.querySelectorAll(".legend .largest"))
      legend.textContent = `${percent(scale)}, half as deep at ${percent(scale / 4)}: one scale for all layers and heads`;
    $("image-legend").hidden = !isImage();
    drawChannels(wide, left);
  }
  function drawChannels(wide, left) {
    // what came in and went out, on the map's axis of time
    const { channels, tokens } = view().queries,
      ink = color("--ink");
    $("channels").replaceChildren(
      ...Object.entries(channels).map(([name, { width, blob }]) => {
        const canvas = make("canvas"),
          values = numbers(blob);
        paint(canvas, tokens.length, width, (x, y) => values[x * width + y], ink);
        Object.assign(canvas.style, {
          width: `${wide * tokens.length}px`,
          height: `${Math.max(6 * width, 10)}px`,
          marginLeft: `${left}px`,
          imageRendering: "pixelated",
          border: "1px solid var(--line)",
        });
        canvas.setAttribute("role", "img");
        canvas.setAttribute("aria-label", `${name} at each time step`);
        return make("div", {}, make("div", { className: "small", textContent: name }), canvas);
      }),
    );
  }
  function place(mark, [x, y, width, height], unit) {
    Object.assign(mark.style, {
      display: "block",
      left: x + unit,
      top: y + unit,
      width: width + unit,
      height: height + unit,
    });
  }

  // ---- Lines from the chosen query to the keys, a color for each head of the layer ----
  let lines = [];
  const hue = (h, heads) => `hsl(${Math.round((360 * h) / heads)} 75% var(--lightness))`;
  function drawLines() {
    const { queries, keys, kind } = view(),
      [Q, K] = size(),
      own = tiles.filter((tile) => tile.layer === state.layer && tile.head !== "mean");
    const figure = $("lines");
    figure.hidden = isImage() || overTime() || kind === "kernel" || Math.max(Q, K) > 80;
    lines = [];
    if (figure.hidden) return;
    const high = 22,
      [left, right, width] = [190, 410, 600];
    const root = svg("svg", { viewBox: `0 0 ${width} ${Math.max(Q, K) * high + 4}`, role: "img" });
    root.setAttribute("aria-label", "lines from the chosen token to the tokens it attends to, a color for each head");
    const column = (side, x, anchor) =>
      side.tokens.map((token, i) => {
        const text = svg("text", { x, y: (i + 0.7) * high, "text-anchor": anchor });
        text.textContent = short(token).slice(0, 26);
        root.append(text);
        return text;
      });
    const from = column(queries, left - 8, "end");
    column(keys, right + 8, "start");
    from.forEach((text, i) => {
      text.classList.add("query");
      text.addEventListener("pointerenter", () => hoverQuery(i));
      text.addEventListener("pointerleave", () => hoverQuery(null));
      text.addEventListener("click", () => pin(i));
    });
    for (const [h, tile] of own.entries())
      for (let k = 0; k < K; k++) {
        const line = svg("line", { x1: left, x2: right, y2: (k + 0.5) * high + ((h + 0.5) / own.length - 0.5) * 8 });
        line.style.stroke = hue(h, own.length);
        lines.push({ line, tile, k });
        root.append(line);
      }
    const legend = own.map((tile, h) => {
      const swatch = make("span", { className: "swatch" });
      swatch.style.background = hue(h, own.length);
      return make("span", {}, swatch, tile.name);
    });
    $("lines-of").replaceChildren(root);
    $("lines-heads").replaceChildren(...legend);
    lines.from = from;
  }
  function showLines() {
    const q = query();
    lines.from?.forEach((text, i) => text.classList.toggle("here", i === q));
    for (const one of lines) {
      const depth = shade(rowOf(one.tile, q)[one.k]),
        hidden = depth < 0.03;
      if (hidden !== one.hidden) one.line.style.display = hidden ? "none" : "";
      one.hidden = hidden;
      if (hidden) continue;
      one.line.setAttribute("y1", (q + 0.5) * 22);
      one.line.style.opacity = depth.toFixed(3);
      one.line.style.strokeWidth = (0.5 + 3 * depth).toFixed(2);
    }
  }
  function hoverQuery(i) {
    over = i;
    show();
  }
  function svg(tag, attributes) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  }

  // ---- Kernel regression: data, estimate and the query, in the plane ----
  const plane = { circles: [], x: null, y: null };
  function drawPlot() {
    const { keys, queries, values } = view(),
      plot = $("plot");
    plot.hidden = !(values && keys.points && queries.points && queries.points[0].length === 1);
    if (plot.hidden) return;
    const xs = queries.points.map((p) => p[0]).concat(keys.points.map((p) => p[0]));
    const bounds = (all) => [Math.min(...all), Math.max(...all)],
      [x0, x1] = bounds(xs),
      [low, high] = bounds(values);
    const [y0, y1] = [low - 0.05 * (high - low), high + 0.05 * (high - low)];
    plane.x = (x) => 40 + (590 * (x - x0)) / (x1 - x0 || 1);
    plane.y = (y) => 270 - (250 * (y - y0)) / (y1 - y0 || 1);
    const root = svg("svg", { viewBox: "0 0 640 300", role: "img" });
    root.setAttribute("aria-label", "data points, the estimate, and the query that is chosen");
    root.append(svg("path", { class: "axis", d: "M40 10V270H635", fill: "none" }));
    const text = (x, y, content, anchor) => {
      const t = svg("text", { x, y, "text-anchor": anchor });
      t.textContent = content;
      root.append(t);
    };
    for (const part of [0, 0.5, 1]) {
      text(plane.x(x0 + part * (x1 - x0)), 288, (x0 + part * (x1 - x0)).toFixed(1), "middle");
      text(35, plane.y(y0 + part * (y1 - y0)) + 4, (y0 + part * (y1 - y0)).toFixed(1), "end");
    }
    plane.curve = svg("path", { class: "curve" });
    plane.at = svg("line", { class: "at", y1: 10, y2: 270 });
    plane.estimate = svg("circle", { class: "estimate", r: 4.5 });
    plane.circles = keys.points.map((point, k) => {
      const circle = svg("circle", { class: "point", cx: plane.x(point[0]), cy: plane.y(values[k]) });
      circle.dataset.k = k;
      return circle;
    });
    root.append(plane.curve, plane.at, ...plane.circles, plane.estimate);
    const nearest = (event) => {
      const box = root.getBoundingClientRect(),
        x = ((event.clientX - box.left) / box.width) * 640;
      return queries.points.reduce(
        (near, p, q) => (Math.abs(plane.x(p[0]) - x) < Math.abs(plane.x(queries.points[near][0]) - x) ? q : near),
        0,
      );
    };
    root.addEventListener("pointermove", (event) => {
      const q = nearest(event);
      if (q !== over) {
        over = q;
        show();
      }
    });
    root.addEventListener("pointerleave", () => {
      over = null;
      show();
    });
    root.addEventListener("click", (event) =>
      event.target.dataset.k ? toggle(+event.target.dataset.k) : pin(nearest(event)),
    );
    const caption = make("figcaption", {
      textContent: "Data points, larger and deeper the more they weigh; the curve is the estimate.",
    });
    plot.replaceChildren(caption, root);
  }
  function showPlot(tile, row) {
    if ($("plot").hidden) return;
    const { queries } = view(),
      at = queries.points.map((p, q) => [plane.x(p[0]), plane.y(pool(rowOf(tile, q)))]);
    plane.curve.setAttribute("d", at.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join(""));
    const [x, y] = at[query()];
    for (const end of ["x1", "x2"]) plane.at.setAttribute(end, x);
    plane.estimate.setAttribute("cx", x);
    plane.estimate.setAttribute("cy", y);
    plane.circles.forEach((circle, k) => {
      circle.setAttribute("r", 3 + 7 * shade(row[k]));
      circle.style.fillOpacity = 0.08 + 0.92 * shade(row[k]);
      circle.classList.toggle("off", state.off.has(k));
    });
  }

  // ---- What follows the pointer: only this is done when it moves ----
  function show() {
    const tile = chosen(),
      q = query(),
      row = rowOf(tile, q),
      [Q, K] = size(),
      ink = isImage() ? color("--over") : null;
    elements.keys.forEach((button, k) => button.style.setProperty("--w", shade(row[k]).toFixed(3)));
    elements.queries.forEach((button, i) => {
      button.style.setProperty("--w", under === null ? 0 : shade(tile.values[i * K + under]).toFixed(3));
      button.classList.toggle("here", i === q);
    });
    for (const part of parts) {
      const own = rowOf(part.tile, q),
        top = under === null || state.off.has(under) ? best(own) : under;
      part.bits.textContent = `${entropy(own).toFixed(2)} bits`;
      part.told.textContent = own[top] > 0 ? `→ ${short(view().keys.tokens[top])} ${percent(own[top])}` : "→ nothing";
      if (isImage()) paintOver(part.canvas, own, ink);
      else place(part.mark, overTime() ? [(100 * q) / Q, 0, 100 / Q, 100] : [0, (100 * q) / Q, 100, 100 / Q], "%");
    }
    const [wide, high, left, top] = cell,
      mark = document.querySelector("#map .mark");
    place(
      mark,
      overTime() ? [left + q * wide, top, wide, high * listed.length] : [left, top + q * high, wide * K, high],
      "px",
    );
    showPlot(tile, row);
    showLines();
    $("status").textContent = sentence();
    if ($("numbers").open) showNumbers();
  }
  function showNumbers() {
    const { keys, heads, layers } = view(),
      q = query();
    const own = tiles.filter((tile) => tile.layer === state.layer);
    const head = make(
      "tr",
      {},
      make("th", { textContent: "key", scope: "col" }),
      ...own.map((t) => make("th", { textContent: t.name, scope: "col" })),
    );
    const rows = keys.tokens.map((_, k) =>
      make(
        "tr",
        {},
        make("th", { textContent: spoken(keys, k), scope: "row" }),
        ...own.map((t) => make("td", { textContent: exact(rowOf(t, q)[k]) })),
      ),
    );
    const caption = make("caption", {
      textContent:
        `Weights from ${quoted(view().queries, q)}` +
        (layers > 1 && state.layer !== "rollout" ? `, layer ${state.layer + view().lowest}` : ""),
    });
    $("numbers").lastElementChild.replaceChildren(
      make("table", {}, caption, make("thead", {}, head), make("tbody", {}, ...rows)),
    );
  }

  // ---- What changes when something is chosen ----
  function choose() {
    // another tile, or keys off: the same tokens
    compute();
    drawTiles();
    for (const { tile, button } of parts) {
      const on = tile === chosen();
      button.setAttribute("aria-pressed", on);
      button.tabIndex = on ? 0 : -1;
      button.setAttribute("aria-label", `${named(tile)}, ${tile.entropy.toFixed(2)} bits`);
    }
    elements.queries.forEach((button, i) => {
      button.setAttribute("aria-current", i === state.query);
      button.tabIndex = i === state.query ? 0 : -1;
    });
    const rolled = state.layer === "rollout";
    elements.keys.forEach((button, k) => {
      if (keysMayBeOff()) button.setAttribute("aria-pressed", !state.off.has(k));
      button.classList.toggle("off", state.off.has(k) && !rolled);
      button.hidden = !listed.includes(k);
      button.tabIndex = -1;
    });
    const first = elements.keys.find((button) => !button.hidden);
    if (first) first.tabIndex = 0;
    const unused = elements.keys.length - listed.length;
    $("hint").textContent =
      (keysMayBeOff() ? "Click a key token to switch it off." : "") +
      (unused ? ` ${unused} locations that no head ever gave more than 0.02 are not shown.` : "");
    $("reset").hidden = !state.off.size;
    drawLens();
    drawMap();
    drawLines();
    show();
    remember();
  }
  function change() {
    // another input, output or attention
    state.answer = Math.min(state.answer, data.inputs[state.input].answers.length - 1);
    state.attention = Math.min(state.attention, answer().attentions.length - 1);
    const [Q, K] = size();
    state.query = Math.min(state.query, Q - 1);
    state.off = new Set([...state.off].filter((k) => k < K && keysMayBeOff()));
    over = under = null;
    $("inputs").value = state.input;
    $("join").hidden = !inWords(answer().attentions[state.attention]);
    $("words").checked = state.words;
    showGallery();
    options(
      "kinds",
      answer().attentions.map((t) => [t.kind]),
      state.attention,
      (i) => {
        Object.assign(state, { attention: i, off: new Set(), layer: -1 });
        state.query = first();
      },
    );
    options(
      "answers",
      data.inputs[state.input].answers.map((a) => [
        a.text || "∅",
        a.score,
        a.measure === "the log-odds" ? `, log-odds ${a.value.toFixed(2)}` : "",
      ]),
      state.answer,
      (i) => Object.assign(state, { answer: i }),
    );
    $("tiles-title").textContent = view().layers > 1 ? "Layers and heads" : "Heads";
    $("about-kind").textContent = data.kinds[view().kind];
    $("about-keys").textContent = overTime()
      ? "Locations of a memory cannot be switched off: where a head is depends on where it was."
      : {
          divided:
            "A key can be switched off: click it. Its value goes with it, and the rest of the row is divided by what " +
            "is left, which is what the normalizer (the softmax) without that key would give in this layer. Layers " +
            "above it would change, too; that needs the model and is not shown.",
          unchanged:
            "A key can be switched off: click it. Its value goes with it, and the other weights of the row stay, " +
            "since this normalizer weighs each key by its own score. Layers above it would change, too; that needs " +
            "the model and is not shown.",
          unknown:
            "Keys cannot be switched off here: what this normalizer would give without one depends on scores that " +
            "are not in this page.",
        }[view().without_key];
    $("about-heads").textContent = view().without
      ? `A head off: “off: x” on a tile is the change of ${answer().measure} of this output ` +
        `when that head alone is silent; the model computed it. Several heads off at once are not in this page.`
      : "Heads cannot be switched off here: what the model would do without one was not computed for this page.";
    const kinds = Object.keys(view().scores);
    $("sort-label").hidden = $("about-scores").hidden = !kinds.length;
    $("sort").replaceChildren(
      make("option", { value: "", textContent: "layer" }),
      ...kinds.map((value) => make("option", { value, textContent: `${value} score` })),
    );
    $("sort").value = kinds.includes(state.sort) ? state.sort : "";
    drawSide("queries");
    drawSide("keys");
    $("sides").className = isImage() ? "pictures" : "";
    drawPlot();
    choose();
  }
  function options(id, labels, selected, act) {
    const box = $(id),
      legend = box.querySelector("legend");
    box.replaceChildren(
      legend,
      ...labels.map(([text, score, odds = ""], i) => {
        const radio = make("input", { type: "radio", name: id, value: i, checked: i === selected });
        radio.addEventListener("change", () => {
          act(i);
          change();
          $(id).querySelectorAll("input")[i]?.focus();
        });
        const label = make("label", {}, radio, ` ${text}`);
        if (typeof score === "number") label.append(make("output", { textContent: score.toFixed(3) + odds }));
        return label;
      }),
    );
    box.hidden = id === "kinds" && labels.length < 2;
  }
  function pin(q) {
    state.query = q;
    over = null;
    elements.queries.forEach((b, i) => {
      b.setAttribute("aria-current", i === q);
      b.tabIndex = i === q ? 0 : -1;
    });
    show();
    remember();
  }
  function toggle(k) {
    if (!keysMayBeOff()) return;
    if (!state.off.delete(k)) state.off.add(k);
    choose();
  }

  // ---- The address ----
  let waiting = 0;
  function remember() {
    // a little later: browsers refuse an address that changes all the time
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      try {
        history.replaceState(null, "", address());
      } catch {
        /* a frame has none */
      }
    }, 150);
  }
  function address() {
    const { input, answer, layer, head, query, off } = state,
      kind = view().kind;
    const told = {
      input,
      answer,
      attention: kind,
      layer,
      head,
      token: query,
      ...(state.words ? {} : { pieces: 1 }),
      ...(state.sort in view().scores ? { sort: encodeURIComponent(state.sort) } : {}),
      ...(off.size ? { off: [...off].sort((a, b) => a - b).join(".") } : {}),
    };
    return (
      "#" +
      Object.entries(told)
        .map(([name, value]) => `${name}=${value}`)
        .join("&")
    );
  }
  function first() {
    // where to look from before anything is chosen
    const { kind, queries } = view(),
      count = queries.tokens.length;
    if (kind === "kernel") return count >> 1;
    if (kind === "decoder") return count - 1; // the first token sees itself alone
    return queries.image !== null && count === queries.grid ** 2 ? (queries.grid >> 1) * (queries.grid + 1) : 0;
  }
  function restore() {
    const told = new URLSearchParams(location.hash.slice(1)),
      number = (name) => Math.max(0, parseInt(told.get(name), 10) || 0);
    state.input = Math.min(number("input"), data.inputs.length - 1);
    state.answer = Math.min(number("answer"), data.inputs[state.input].answers.length - 1);
    const kinds = answer().attentions.map((t) => t.kind),
      wanted = told.get("attention") ?? "cross";
    state.attention = Math.max(0, kinds.indexOf(wanted));
    state.layer = told.get("layer") === "rollout" ? "rollout" : told.has("layer") ? number("layer") : -1;
    state.head = told.get("head") === "mean" ? "mean" : number("head");
    state.words = !told.has("pieces");
    state.sort = told.get("sort") ?? "";
    state.query = told.has("token") ? number("token") : first();
    state.off = new Set((told.get("off") ?? "").split(".").filter(Boolean).map(Number).filter(Number.isInteger));
    change();
  }

  // ---- Pointer and keys ----
  function listen(which) {
    const box = $(which),
      at = (event) => {
        const b = event.target.closest?.("[data-i]");
        return b ? +b.dataset.i : null;
      };
    const hover = (i) => {
      if (which === "queries" ? i === over : i === under) return;
      if (which === "queries") over = i;
      else under = i;
      show();
    };
    box.addEventListener("pointerover", (event) => hover(at(event)));
    box.addEventListener("pointerleave", () => hover(null));
    box.addEventListener("focusin", (event) => {
      const i = at(event);
      if (i !== null && which === "queries") pin(i);
      else hover(i);
    });
    box.addEventListener("focusout", () => {
      if (which === "keys") hover(null);
    });
    box.addEventListener("click", (event) => {
      const i = at(event);
      if (i !== null) which === "queries" ? pin(i) : toggle(i);
    });
    box.addEventListener("keydown", (event) => roam(event, elements[which], +box.dataset.step));
  }
  function roam(event, buttons, step) {
    // arrow keys go from one button of a group to the next
    const here = buttons.indexOf(document.activeElement),
      last = buttons.length - 1;
    const to = {
      ArrowRight: here + 1,
      ArrowLeft: here - 1,
      ArrowDown: here + step,
      ArrowUp: here - step,
      Home: 0,
      End: last,
    }[event.key];
    if (here < 0 || to === undefined) return;
    event.preventDefault();
    const way = to >= here ? 1 : -1;
    let next = Math.min(Math.max(to, 0), last);
    while (buttons[next]?.hidden && buttons[next + way]) next += way;
    buttons[next].tabIndex = 0;
    if (next !== here) buttons[here].tabIndex = -1;
    buttons[next].focus();
  }
  listen("queries");
  listen("keys");
  function select(button) {
    const part = parts.find((one) => one.button === button);
    [state.layer, state.head] = [part.tile.layer, part.tile.head];
    choose();
    parts.find((one) => one.tile === chosen()).button.focus();
  }
  $("tiles").addEventListener("click", (event) => {
    const b = event.target.closest(".tile");
    if (b) select(b);
  });
  $("tiles").addEventListener("keydown", (event) =>
    roam(
      event,
      parts.map((part) => part.button),
      view().heads.length + (view().heads.length > 1 ? 1 : 0),
    ),
  );
  const canvas = $("map-canvas");
  const onMap = (event) => {
    const box = canvas.getBoundingClientRect(),
      [wide, high, left, top] = cell,
      [Q, K] = size();
    const [x, y] = [
      Math.floor((event.clientX - box.left - left) / wide),
      Math.floor((event.clientY - box.top - top) / high),
    ];
    const [q, k] = overTime() ? [x, listed[y]] : [y, x];
    return q >= 0 && q < Q && k >= 0 && k < K ? [q, k] : [null, null];
  };
  canvas.addEventListener("pointermove", (event) => {
    const [q, k] = onMap(event);
    if (q !== over || k !== under) {
      [over, under] = [q, k];
      show();
    }
  });
  canvas.addEventListener("pointerleave", () => {
    over = under = null;
    show();
  });
  canvas.addEventListener("click", (event) => {
    const [q] = onMap(event);
    if (q !== null) pin(q);
  });
  $("reset").addEventListener("click", () => {
    state.off.clear();
    choose();
    elements.queries[state.query].focus();
  });
  $("numbers").addEventListener("toggle", () => {
    if ($("numbers").open) showNumbers();
  });
  $("lens").addEventListener("toggle", drawLens);
  $("sort").addEventListener("change", () => {
    state.sort = $("sort").value;
    choose();
  });
  $("controls").addEventListener("submit", (event) => event.preventDefault());
  $("inputs").append(...data.inputs.map((one, i) => make("option", { value: i, textContent: one.title })));
  $("inputs").addEventListener("change", () => {
    Object.assign(state, { input: +$("inputs").value, answer: 0, off: new Set() });
    state.query = first();
    change();
  });
  $("words").addEventListener("change", () => {
    Object.assign(state, { words: $("words").checked, off: new Set() });
    state.query = first();
    change();
  });

  // ---- The gallery of inputs ----
  const cards = data.inputs.map((one, i) => {
    const best = one.answers[0],
      image = best.attentions[0]?.keys.image ?? null;
    const parts = [make("span", { textContent: one.title }), make("span", { className: "told", textContent: best.text })];
    if (image !== null) parts.unshift(make("img", { src: source(image), alt: "", loading: "lazy" }));
    const card = make("button", { type: "button", className: "card" }, ...parts);
    card.addEventListener("click", () => {
      Object.assign(state, { input: i, answer: 0, off: new Set() });
      state.query = first();
      change();
    });
    const tokens = best.attentions.flatMap((a) => (a.keys.image === null ? a.keys.tokens : []));
    return { card, text: [one.title, ...one.answers.map((a) => a.text), tokens.join(" ")].join("\n").toLowerCase() };
  });
  function showGallery() {
    const wanted = $("search").value.trim().toLowerCase();
    let found = 0;
    cards.forEach(({ card, text }, i) => {
      card.hidden = !text.includes(wanted);
      card.setAttribute("aria-current", i === state.input);
      found += !card.hidden;
    });
    $("found").textContent = wanted ? `${found} of ${cards.length}` : `${cards.length} inputs`;
  }
  $("gallery").hidden = cards.length < 2;
  $("cards").append(...cards.map(({ card }) => card));
  $("search").addEventListener("input", showGallery);
  $("note").hidden = !data.note;
  $("note").textContent = data.note;
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", choose);
  const onPaper = (on) => () => {
    document.documentElement.classList.toggle("print", on);
    choose();
  };
  addEventListener("beforeprint", onPaper(true));
  addEventListener("afterprint", onPaper(false));
  addEventListener("resize", () => {
    drawMap();
    show();
  });
  addEventListener("hashchange", restore);
  restore();
})();
