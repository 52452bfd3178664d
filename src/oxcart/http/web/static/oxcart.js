// The dashboard's script: live parts, times in the viewer's zone, keys, selection and small conveniences.
// Every page works without it; it only makes them live.

const find = (selector, within = document) => within.querySelector(selector);
const findAll = (selector, within = document) => [...within.querySelectorAll(selector)];
document.body.classList.add("script");

// -- times: in the viewer's zone, with UTC as the tooltip

const atTime = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const atDay = new Intl.DateTimeFormat(undefined, { year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit" });
const relative = new Intl.RelativeTimeFormat(undefined, { numeric: "auto", style: "short" });

function ago(ms) {
  const seconds = (ms - Date.now()) / 1000;
  for (const [unit, size] of [["day", 86400], ["hour", 3600], ["minute", 60]]) {
    if (Math.abs(seconds) >= size) return relative.format(Math.trunc(seconds / size), unit);
  }
  return Math.abs(seconds) < 5 ? "now" : relative.format(Math.trunc(seconds), "second");
}

function showTimes(within = document) {
  for (const one of findAll("time[data-time]", within)) {
    const at = new Date(one.dateTime);
    const isToday = at.toDateString() === new Date().toDateString();
    const clock = (isToday ? atTime : atDay).format(at);
    const text = { at: clock, full: `${clock} (${ago(at.getTime())})` }[one.dataset.time] || ago(at.getTime());
    if (one.textContent !== text) one.textContent = text;
  }
}

// -- live parts: the server sends the parts that changed; elements that stay the same are kept, with their
// focus, their selection and what is folded open

const keyOf = (node) => (node.nodeType === 1 ? node.dataset.key || node.id || "" : "");
const kept = new Set(["open", "checked"]);

function becomes(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName || keyOf(old) !== keyOf(fresh)) return old.replaceWith(fresh);
  if (old.nodeType !== 1) {
    if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
    return;
  }
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && !kept.has(name) && name !== "class") old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) if (!kept.has(name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
  if (old.classList.contains("at") && !fresh.classList.contains("at")) old.classList.add("at");
  if (old.nodeName === "TIME") return;
  morph(old, fresh);
}

function morph(old, fresh) {
  const known = new Map([...old.children].filter(keyOf).map((child) => [keyOf(child), child]));
  let at = old.firstChild;
  for (const next of [...fresh.childNodes]) {
    const same = known.get(keyOf(next));
    if (same && same !== at) old.insertBefore(same, at);
    const current = same || at;
    if (!current) {
      old.appendChild(next);
      continue;
    }
    if (!same && keyOf(current) && known.has(keyOf(current)) && keyOf(next) !== keyOf(current)) {
      old.insertBefore(next, current);
      continue;
    }
    at = current.nextSibling;
    becomes(current, next);
  }
  while (at) {
    const rest = at.nextSibling;
    at.remove();
    at = rest;
  }
}

function take(parts) {
  for (const [name, html] of Object.entries(parts)) {
    const part = document.getElementById(`part-${name}`);
    if (!part) continue;
    const followed = findAll("[data-follow]", part).filter((one) => one.scrollTop + one.clientHeight >= one.scrollHeight - 8).length;
    const fresh = new DOMParser().parseFromString(`<body>${html}</body>`, "text/html").body;
    const row = rowAt();
    const rowKey = row && row.dataset.key;
    morph(part, fresh);
    showTimes(part);
    filterRows();
    if (rowKey && !rowAt()) moveTo(findAll("[data-row]").find((one) => one.dataset.key === rowKey));
    if (followed) for (const one of findAll("[data-follow]", part)) one.scrollTop = one.scrollHeight;
  }
  showSelection();
}

const state = find("#link-state");
const away = find("#away");

function say(kind, text, message = "") {
  state.className = `link-state ${kind}`;
  find("span", state).textContent = text;
  away.hidden = !message;
  if (away.textContent !== message) away.textContent = message;
  document.body.classList.toggle("lost", Boolean(message));
}

// Reloads the page if the server now leads elsewhere or refuses it: to sign in, or to read why. A server that
// is away or busy is asked again later.
async function retry(again) {
  const answer = await fetch(location.href, { redirect: "manual", headers: { Accept: "text/html" } }).catch(() => null);
  const isRefused = answer && [401, 403, 404].includes(answer.status);
  if (answer && (answer.type === "opaqueredirect" || isRefused)) return location.reload();
  setTimeout(again, 3000);
}

function listen() {
  const source = new EventSource(document.body.dataset.events);
  source.addEventListener("open", () => say("live", "live"));
  source.addEventListener("parts", (event) => {
    say("live", "live");
    take(JSON.parse(event.data));
  });
  source.addEventListener("away", (event) => say("lost", "server away", JSON.parse(event.data).message));
  source.addEventListener("gone", (event) => say("lost", "gone", JSON.parse(event.data).message));
  source.addEventListener("error", () => {
    say("lost", "reconnecting", "The dashboard does not answer. It is tried again until it does.");
    if (source.readyState === EventSource.CLOSED) retry(listen);
  });
  addEventListener("pagehide", () => source.close());
}

// -- rows: j and k move, Enter opens, x selects

const rowAt = () => find("[data-row].at");

function moveTo(row) {
  if (!row) return;
  rowAt()?.classList.remove("at");
  row.classList.add("at");
  row.scrollIntoView({ block: "nearest" });
  find("[data-open]", row)?.focus({ preventScroll: true });
}

function step(by) {
  const rows = findAll("[data-row]").filter((row) => !row.hidden);
  const at = rows.indexOf(rowAt());
  moveTo(rows[at < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, at + by))]);
}

const boxes = () => findAll('input[name="job"][type="checkbox"]');

function showSelection() {
  const bulk = find("#bulk");
  if (!bulk) return;
  const count = boxes().filter((box) => box.checked).length;
  const every = find("[data-every]", bulk)?.checked;
  bulk.classList.toggle("some", count > 0 || Boolean(every));
  const none = boxes().length ? "Select jobs to act on them." : "";
  find("#selected").textContent = every ? "All that match are selected" : count ? `${count} selected` : none;
  const all = find("[data-all]");
  if (all) all.checked = count > 0 && count === boxes().length;
}

document.addEventListener("change", (event) => {
  if (event.target.matches("[data-all]")) for (const box of boxes()) box.checked = event.target.checked;
  if (event.target.matches('[data-all], [data-every], input[name="job"]')) showSelection();
});

function filterRows() {
  for (const field of findAll("[data-filter]")) {
    const text = field.value.trim().toLowerCase();
    for (const row of findAll(`${field.dataset.filter} [data-text]`)) row.hidden = !row.dataset.text.toLowerCase().includes(text);
  }
}
document.addEventListener("input", (event) => event.target.matches("[data-filter]") && filterRows());

// -- buttons

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.dataset.copy) {
    await navigator.clipboard.writeText(find(button.dataset.copy).textContent).catch(() => {});
    const before = button.lastChild.textContent;
    button.lastChild.textContent = "Copied";
    setTimeout(() => (button.lastChild.textContent = before), 1500);
  }
  if (button.dataset.sure && !button.dataset.confirmed) {
    event.preventDefault();
    const dialog = find("#sure");
    find("#sure-text").textContent = button.dataset.sure;
    dialog.returnValue = "";
    dialog.showModal();
    dialog.addEventListener("close", () => {
      if (dialog.returnValue !== "yes") return;
      button.dataset.confirmed = "yes";
      button.click();
    }, { once: true });
  }
});

function turn() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  document.cookie = `oxcart-theme=${root.dataset.theme}; path=${document.body.dataset.base || "/"}; max-age=31536000; SameSite=Lax`;
}
find("#theme").addEventListener("click", turn);
find("#help-open").addEventListener("click", () => find("#help").showModal());

// -- keys

let before = "";
const keys = {
  "/": () => find("#search").focus(),
  "?": () => find("#help").showModal(),
  j: () => step(1),
  k: () => step(-1),
  t: turn,
  x: () => {
    const box = rowAt() && find('input[name="job"]', rowAt());
    if (box) box.checked = !box.checked;
    showSelection();
  },
  a: () => {
    const all = boxes().every((box) => box.checked);
    for (const box of boxes()) box.checked = !all;
    showSelection();
  },
  r: () => (find("#bulk.some [data-verb='retry']") || find("button.do-retry"))?.click(),
  c: () => (find("#bulk.some [data-verb='cancel']") || find("button.do-cancel"))?.click(),
};

document.addEventListener("keydown", (event) => {
  const inField = event.target.closest("input:not([type='checkbox']), select, textarea");
  if (event.key === "Escape" && inField) return inField.blur();
  if (inField || event.ctrlKey || event.metaKey || event.altKey || find("dialog[open]")) return;
  if (before === "g") {
    before = "";
    const goal = find(`[data-go="${CSS.escape(event.key)}"]`);
    if (goal) {
      event.preventDefault();
      goal.click();
    }
    return;
  }
  before = event.key === "g" ? "g" : "";
  if (keys[event.key]) {
    event.preventDefault();
    keys[event.key]();
  }
});

// -- begin

// A page that was opened during an outage: it reloads once it would show something else.
async function waitForServer() {
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } }).catch(() => null);
  if (answer && answer.status !== 503) return location.reload();
  setTimeout(waitForServer, 3000);
}
if ("away" in document.body.dataset) setTimeout(waitForServer, 3000);

showTimes();
showSelection();
// On a phone the pages are one line that scrolls: the current one must be seen.
const side = find(".side");
const current = side && find("[aria-current]", side);
if (current && side.scrollWidth > side.clientWidth) side.scrollLeft = current.offsetLeft - (side.clientWidth - current.offsetWidth) / 2;
setInterval(showTimes, 1000);
for (const one of findAll("[data-follow]")) one.scrollTop = one.scrollHeight;
if (document.body.dataset.events) listen();
