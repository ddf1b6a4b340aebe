"use strict";
// Draws the maps, and says what lies under the pointer. The charts are drawn already; without this script they stay readable.
(() => {
  const logs = JSON.parse(document.getElementById("data").textContent);
  const tip = document.getElementById("tip");
  const human = n => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let u = 0;
    while (n >= 1024 && u < 4) { n /= 1024; u++; }
    return u ? n.toFixed(2) + " " + units[u] : n + " B";
  };
  const show = (event, text) => {
    tip.textContent = text;
    tip.style.visibility = "visible";
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 8)) + "px";
    tip.style.top = Math.max(4, Math.min(event.clientY + 14, innerHeight - height - 8)) + "px";
  };
  const hide = () => { tip.style.visibility = "hidden"; };

  const chart = (box, log) => {
    const svg = box.querySelector("svg");
    const cursor = svg.querySelector(".cursor");
    const { left, right, width } = log.frame;
    const points = log.points;           // event, live, reserved, event, ...
    svg.addEventListener("pointermove", event => {
      const area = svg.getBoundingClientRect();
      const at = ((event.clientX - area.left) / area.width * width - left) / (width - left - right) * log.calls;
      let low = 0, high = points.length / 3 - 1;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (points[middle * 3] < at) low = middle + 1; else high = middle;
      }
      const i = low * 3, x = left + points[i] / log.calls * (width - left - right);
      cursor.setAttribute("x1", x);
      cursor.setAttribute("x2", x);
      cursor.style.visibility = "visible";
      show(event, `event ${points[i].toLocaleString()}\nlive ${human(points[i + 1])}\nreserved ${human(points[i + 2])}`);
    });
    svg.addEventListener("pointerleave", () => { cursor.style.visibility = "hidden"; hide(); });
  };

  const map = (canvas, log) => {
    const height = 14, gap = 3;
    const total = log.segments.reduce((n, s) => n + s[1], 0);
    if (!total) return;
    // About 28 rows of a round number of bytes, each segment on rows of its own.
    let per = 4096;
    while (per * 28 < total) per *= 2;
    if (per * 20 > total && per > 4096 && per * 0.75 * 36 >= total) per *= 0.75;
    const rows = [];
    log.segments.forEach(([name, bytes], segment) => {
      for (let at = 0; at < bytes; at += per) rows.push({ segment, at, bytes: Math.min(per, bytes - at), name });
    });
    const first = [];
    rows.forEach((row, i) => { if (row.at === 0) first[row.segment] = i; });
    const draw = () => {
      const scale = devicePixelRatio || 1, width = canvas.clientWidth || 800;
      canvas.style.height = rows.length * (height + gap) + "px";
      canvas.width = width * scale;
      canvas.height = rows.length * (height + gap) * scale;
      const paint = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
      const colour = name => style.getPropertyValue(name).trim();
      const streams = [0, 1, 2, 3, 4, 5, 6, 7].map(n => colour("--s" + n)), mixed = colour("--mixed"), back = colour("--bg");
      paint.scale(scale, scale);
      paint.fillStyle = colour("--hole");
      rows.forEach((row, i) => paint.fillRect(0, i * (height + gap), width * row.bytes / per, height));
      for (let b = 0; b < log.blocks.length; b += 5) {
        const [segment, offset, bytes, stream] = log.blocks.slice(b, b + 4);
        paint.fillStyle = stream >= 0 && stream < 8 ? streams[stream] : mixed;
        for (let at = offset; at < offset + bytes;) {
          const row = Math.floor(at / per), end = Math.min(offset + bytes, (row + 1) * per);
          const x = (at - row * per) / per * width, w = (end - at) / per * width;
          const y = (first[segment] + row) * (height + gap);
          paint.fillRect(x, y, Math.max(w, 0.4), height);
          // A thin edge keeps neighbours apart where there is room for it.
          if (w > 4 && end === offset + bytes) {
            paint.fillStyle = back;
            paint.fillRect(x + w - 0.75, y, 0.75, height);
            paint.fillStyle = stream >= 0 && stream < 8 ? streams[stream] : mixed;
          }
          at = end;
        }
      }
    };
    canvas.addEventListener("pointermove", event => {
      const area = canvas.getBoundingClientRect();
      const row = rows[Math.floor((event.clientY - area.top) / (height + gap))];
      const offset = row ? row.at + (event.clientX - area.left) / area.width * per : -1;
      if (!row || offset >= row.at + row.bytes) { hide(); return; }
      // The last block of the segment that starts at or before the pointer.
      let before = -1, after = -1;
      for (let b = 0; b < log.blocks.length; b += 5) {
        if (log.blocks[b] !== row.segment) continue;
        if (log.blocks[b + 1] <= offset) before = b; else { after = b; break; }
      }
      const where = `\naddress ${row.name} + ${human(Math.floor(offset))}`;
      if (before >= 0 && offset < log.blocks[before + 1] + log.blocks[before + 2]) {
        const [, , bytes, stream, count] = log.blocks.slice(before, before + 5);
        const whose = stream < 0 ? "several streams" : `stream ${log.streams[stream] ?? "?"}`;
        show(event, (count > 1 ? `${count} blocks, ${human(bytes)} together` : `block, ${human(bytes)}`) + `\n${whose}` + where);
      } else {
        const start = before < 0 ? 0 : log.blocks[before + 1] + log.blocks[before + 2];
        const end = after < 0 ? log.segments[row.segment][1] : log.blocks[after + 1];
        show(event, `hole, ${human(end - start)}` + where);
      }
    });
    canvas.addEventListener("pointerleave", hide);
    addEventListener("resize", draw);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    draw();
  };

  document.querySelectorAll("section[data-log]").forEach(section => {
    const log = logs[section.dataset.log];
    const box = section.querySelector(".chart"), canvas = section.querySelector("canvas.map");
    if (box) chart(box, log);
    if (canvas) map(canvas, log);
  });
})();
