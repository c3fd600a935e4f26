// Keeps the page up to date: a stream of changes, and where there is none, a question every few seconds.
// The server sends HTML that it escaped; the script puts it in by key, so that nothing jumps and nothing loses its focus.
"use strict";
(() => {
  const POLL_MS = 3000, REOPEN_MS = 2000, SILENT_MS = 10000;
  const connection = document.getElementById("connection");
  const bodies = new Map();
  for (const body of document.querySelectorAll("tbody[data-table]")) bodies.set(body.dataset.table, body);
  let heard = Date.now(), polling = 0, source = null;

  function say(text, lost) {
    if (connection.textContent !== text) connection.textContent = text;
    connection.classList.toggle("lost", lost);
  }

  function element(html) {
    const holder = document.createElement("template");
    holder.innerHTML = html;
    return holder.content.firstElementChild;
  }

  function show(table, change) {
    const body = bodies.get(table);
    if (!body) { // a table that was not there before comes with the next load of the page
      if (change.order && change.order.length) location.reload();
      return;
    }
    const rows = new Map();
    for (const row of body.children) rows.set(row.dataset.key, row);
    for (const [key, html] of Object.entries(change.rows)) {
      const row = element(html), old = rows.get(key);
      if (old) old.replaceWith(row); else body.append(row);
      rows.set(key, row);
    }
    if (change.order) {
      const wanted = new Set(change.order);
      for (const [key, row] of rows) if (!wanted.has(key)) row.remove();
      let at = body.firstElementChild;
      for (const key of change.order) {
        const row = rows.get(key);
        if (!row) continue;
        if (row === at) at = at.nextElementSibling; else body.insertBefore(row, at);
      }
    }
    body.closest("section").querySelector(".empty").hidden = body.children.length > 0;
  }

  function take(change) {
    heard = Date.now();
    if (change.tables) document.body.dataset.seen = ""; // no longer as it was served
    if (change.title) document.title = change.title;
    for (const [name, html] of Object.entries(change.blocks || {})) {
      const block = document.getElementById(name);
      if (block && block.innerHTML !== html) block.innerHTML = html;
    }
    const tables = change.tables || {};
    if (change.whole) for (const name of bodies.keys()) if (!tables[name]) tables[name] = {rows: {}, order: []};
    for (const [name, one] of Object.entries(tables)) show(name, one);
  }

  async function ask() {
    try {
      const answer = await fetch("page.json", {headers: {accept: "application/json"}});
      if (!answer.ok) throw new Error(String(answer.status));
      take(await answer.json());
      say("live, asked every few seconds", false);
    } catch (error) {
      lost();
    }
  }

  function lost() {
    say("connection lost: the page shows the state at " + new Date(heard).toLocaleTimeString() + "; trying again", true);
  }

  function stop() {
    if (polling) clearInterval(polling);
    polling = 0;
  }

  function open() {
    if (!window.EventSource) { ask(); polling = setInterval(ask, POLL_MS); return; }
    source = new EventSource("page-events?seen=" + document.body.dataset.seen);
    source.onmessage = (event) => { stop(); take(JSON.parse(event.data)); say("live", false); };
    source.onerror = () => {
      lost();
      if (source.readyState !== EventSource.CLOSED) return; // the browser tries again by itself
      source.close();
      if (!polling) { ask(); polling = setInterval(ask, POLL_MS); }
      setTimeout(open, REOPEN_MS * 5);
    };
  }

  const ACTS = {
    verify: {ask: () => ({}), text: (found) => {
      const counts = {}, bad = [];
      for (const one of found.verdicts) {
        counts[one.verdict] = (counts[one.verdict] || 0) + 1;
        if (one.verdict !== "equal") bad.push(one.task + "/" + one.store + ": " + one.verdict + " " + one.reason);
      }
      return "Verified: " + Object.entries(counts).map(([word, many]) => many + " " + word).concat(bad).join("; ");
    }},
    snapshots: {ask: () => ({name: document.getElementById("snapshot-name").value}),
      text: (found) => "Snapshot " + found.name + " holds " + Object.keys(found.positions).length + " tasks"},
    drain: {ask: () => ({}), text: () => "Drained: every task is closed"},
  };

  async function act(button, result) {
    const what = button.dataset.act;
    if (button.dataset.sure && !confirm(button.dataset.sure)) return;
    button.disabled = true;
    result.textContent = "Asked for it: " + button.textContent + " …";
    try {
      const answer = await fetch("v1/" + what, {method: "POST", headers: {"content-type": "application/json"},
        body: JSON.stringify(ACTS[what].ask())});
      const found = await answer.json();
      result.textContent = answer.ok ? ACTS[what].text(found) : "Refused: " + (found.message || answer.status);
    } catch (error) {
      result.textContent = "No answer: " + error.message;
    }
    button.disabled = false;
  }

  const actions = document.getElementById("actions");
  if (actions) {
    document.getElementById("snapshot-name").value = "page-" + new Date().toISOString().slice(0, 19).replace(/:/g, "");
    for (const button of actions.querySelectorAll("button"))
      button.addEventListener("click", () => act(button, document.getElementById("act-result")));
    actions.hidden = document.getElementById("to-actions").hidden = false;
  }

  // The rows of a key. Names, keys and values are put in as text, never as HTML.
  function cell(kind, text) {
    const made = document.createElement(kind);
    if (kind === "th") made.scope = "col";
    made.textContent = typeof text === "string" || typeof text === "number" ? text : JSON.stringify(text);
    return made;
  }

  function showRows(rows) {
    const table = document.getElementById("lookup-rows"), head = document.createElement("tr");
    const names = rows.length ? Object.keys(rows[0]) : [];
    head.append(...names.map((name) => cell("th", name)));
    table.tHead.replaceChildren(head);
    table.tBodies[0].replaceChildren(...rows.map((one) => {
      const row = document.createElement("tr");
      row.append(...names.map((name) => cell("td", one[name])));
      return row;
    }));
    table.hidden = !rows.length;
  }

  let asked = 0; // answers of older look-ups are dropped

  async function lookUp(result) {
    const store = document.getElementById("lookup-store"), verb = store.selectedOptions[0].dataset.verb;
    const query = new URLSearchParams({key: document.getElementById("lookup-key").value, stale: "1",
      key_format: document.getElementById("lookup-format").value});
    const mine = ++asked;
    result.textContent = "Asked …";
    let rows = [], text;
    try {
      const answer = await fetch("v1/stores/" + encodeURIComponent(store.value) + "/" + verb + "?" + query);
      const found = await answer.json();
      if (answer.ok) rows = found.rows;
      const behind = answer.ok ? Math.max(0, ...found.partitions.map((one) => one.lag_records)) : 0;
      text = !answer.ok ? found.message || String(answer.status)
        : (rows.length ? rows.length + (found.truncated ? " rows, and more" : rows.length > 1 ? " rows" : " row")
          : "No row of this key in the partitions of this instance")
          + (behind ? "; a standby among them is " + behind.toLocaleString("en") + " records behind" : "");
    } catch (error) {
      text = "No answer: " + error.message;
    }
    if (mine !== asked) return;
    result.textContent = text;
    showRows(rows);
  }

  const lookup = document.getElementById("lookup");
  if (lookup) {
    const result = document.getElementById("lookup-result");
    document.getElementById("lookup-ask").addEventListener("click", () => lookUp(result));
    document.getElementById("lookup-key").addEventListener("keydown", (event) => {
      if (event.key === "Enter") lookUp(result);
    });
    lookup.hidden = document.getElementById("to-lookup").hidden = false;
  }

  setInterval(() => { // a stream that says nothing, not even that it lives, is dead
    if (source && !polling && Date.now() - heard > SILENT_MS) {
      source.close();
      lost();
      heard = Date.now();
      setTimeout(open, REOPEN_MS);
    }
  }, 1000);
  open();
})();
