// Keeps a page live. Without it, everything works, but shows how things were when the page was loaded.
//
// One visible tab of the browser follows the stream and passes what it hears on to the other tabs, because a browser
// has few connections to a server. Text from the server is only ever set as text.

const page = document.body.dataset;
const main = document.querySelector("#main");
const live = document.querySelector("#live");
/** Milliseconds without a message after which the page does not call itself live. */
const SILENT = 8000;
/** Shortest time in milliseconds between two readings of the page. */
const PAUSE = 1000;

/** The server's time of what is shown: of the page, and then of the last message. */
let at = Number(page.at);
/** When that came, by the browser's clock and by one that nobody sets. */
let wall = Date.now();
let steady = performance.now();
/** When the last message came, by the browser's clock. 0 before the first. */
let heard = 0;
/** Since when the page is not live. */
let lost = 0;
let signedOut = false;
/** Whether the page could not be read again when it had to be. */
let unread = false;
/** The name of what the stream told last. */
let told = "";
/** How often something was heard of the node that is shown. */
let stirs = 0;
/** When the page was loaded, by the browser's clock. */
const began = Date.now();

// --- Ages -----------------------------------------------------------------------------------------------------------

/** Milliseconds since what is shown came. Setting a clock back makes nothing newer, and the steady clock may stand
 * still while a computer sleeps. */
function silence() {
  return Math.max(performance.now() - steady, Date.now() - wall);
}

/** The server's time now. What is old does not get older words: rows of a page that is not live say from when they
 * are. */
function now() {
  return at + (lost ? 0 : silence());
}

/** A length of time in its largest unit, as the server writes it. */
function age(millis) {
  const seconds = Math.max(0, Math.floor(millis / 1000));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

function setText(element, text) {
  if (element && element.textContent !== text) element.textContent = text;
}

function setTime(element, when) {
  if (!element) return;
  if (when == null) {
    element.removeAttribute("datetime");
    element.removeAttribute("title");
    setText(element, "–");
  } else {
    const iso = new Date(when).toISOString();
    if (element.getAttribute("datetime") !== iso) {
      element.setAttribute("datetime", iso);
      element.title = iso.replace("T", " ").replace(/\.\d+Z/, " UTC");
    }
    setText(element, age(now() - when));
  }
}

function tick() {
  const time = now();
  for (const element of document.querySelectorAll("time[data-age][datetime]")) {
    setText(element, age(time - Date.parse(element.dateTime)));
  }
  tell();
}

/** Says how old the page is. */
function tell() {
  // Forms stay as they were loaded, and say so.
  if (signedOut || page.follows === "nothing") return;
  const silent = silence();
  if (heard && silent < SILENT) {
    if (lost) announce("The page is live again.");
    lost = 0;
    live.className = unread ? "warn" : "";
    setText(live, unread ? "▲ the page could not be read again, trying again" : `live, ${age(silent)} old`);
  } else if (silent >= SILENT) {
    const since = heard || began;
    const time = new Date(since).toTimeString().slice(0, 8);
    if (!lost) announce(`The page is not live since ${time}.`);
    lost = since;
    live.className = "warn";
    setText(live, `▲ not live since ${time}, trying again`);
  }
  document.body.classList.toggle("old", Boolean(lost));
}

/** Says something to those who do not see the page. */
function announce(text) {
  setText(document.querySelector("#said"), text);
}

// --- Messages -------------------------------------------------------------------------------------------------------

const order = (name) => Number(name.slice(name.lastIndexOf("-") + 1));
const process = (name) => name.slice(0, name.lastIndexOf("-"));

/** Takes a message of the stream, from wherever. */
function take(message) {
  if (signedOut) {
    // Somebody signed in again in another tab.
    signedOut = false;
    refresh();
  }
  told = message.to;
  heard = wall = Date.now();
  steady = performance.now();
  at = message.at;
  count(message.head);
  const known = page.shown;
  const same = process(known) === process(message.to);
  // What goes on without an event, such as an image that is being checked.
  if (document.querySelector("[data-busy]")) refresh();
  if (same && order(message.to) <= order(known)) return tell();
  if (known !== message.from) {
    // Something is missing in between.
    again(message);
    return tell();
  }
  page.shown = message.to;
  if (page.follows === "rows") {
    const shown = new Map([...document.querySelectorAll("tbody[data-id]")].map((row) => [row.dataset.id, row]));
    for (const row of message.rows) patch(shown.get(row.id), row);
    for (const [id, row] of shown) {
      if (Object.hasOwn(message.heard, id)) setTime(row.querySelector("[data-f=heard]"), message.heard[id]);
    }
    const others = [...message.gone, ...message.moved];
    if (others.some((id) => shown.has(id)) || (others.length > 0 && !document.querySelector(".pages"))) refresh();
    else if (others.length > 0) refreshLater();
  }
  if (page.follows === "events" && message.head.event !== Number(page.event)) refresh();
  if (page.follows === "node") {
    const changed = message.touched.includes(page.node) || message.rows.some((row) => row.id === page.node);
    const isHeard = Object.hasOwn(message.heard, page.node);
    if (isHeard) setTime(document.querySelector("#heard time"), message.heard[page.node]);
    if (changed || isHeard) stirs++;
    if (changed) refresh();
  }
  page.event = message.head.event;
  tell();
}

/** Reads the page again, if it shows what the stream does not continue. */
function again(message) {
  if (page.follows === "nothing") page.shown = message.to;
  else refresh();
}

/** Sets the sums in the navigation. */
function count(head) {
  for (const element of document.querySelectorAll("[data-head]")) setText(element, String(head[element.dataset.head]));
}

/** Changes a row of the table, if it is there. */
function patch(element, row) {
  if (!element) return;
  const part = (name) => element.querySelector(`[data-f=${name}]`);
  const said = () => part("state").textContent + part("reason").textContent;
  const before = said();
  const put = (name, text) => {
    const cell = part(name);
    if (!cell || cell.textContent === text) return;
    cell.textContent = text;
    const shown = cell.closest("td, th");
    shown.classList.remove("changed");
    // So that the fade begins again.
    void shown.offsetWidth;
    shown.classList.add("changed");
  };
  put("state", row.mark + row.state);
  part("state").className = `state ${row.tone}`;
  put("name", row.name);
  for (const name of ["step", "system", "site", "model", "serial", "address"]) put(name, row[name]);
  setText(part("percent"), row.percent == null ? "" : `${row.percent} %`);
  const bar = part("bar");
  if (bar) {
    bar.hidden = row.percent == null;
    bar.value = row.percent ?? 0;
  }
  setTime(part("since"), row.since);
  setText(part("reason"), row.reason);
  part("reason").className = row.reason_tone;
  part("reason-age").hidden = row.reason_since == null;
  setTime(part("reason_since"), row.reason_since);
  setText(part("command"), row.command);
  setText(part("cause"), row.cause);
  part("act").href = row.act;
  part("act").hidden = row.act === "";
  setText(part("act"), row.act_text);
  part("command").parentElement.hidden = row.command === "";
  element.querySelector(".why").hidden = row.reason === "";
  if (["warn", "bad"].includes(row.tone) && said() !== before) announce(`${row.name}: ${row.state}, ${row.reason}`);
}

// --- Reading the page again -----------------------------------------------------------------------------------------

let due = false;
let busy = false;

/** Reads this very page again and takes over what differs. At most once in a while, however often it is asked for. */
async function refresh() {
  due = true;
  if (busy || document.hidden) return;
  busy = true;
  while (due && !document.hidden) {
    due = false;
    const known = told;
    const fresh = await load();
    if (fresh) adopt(fresh, known);
    // What was to be read is not known yet.
    else due = true;
    unread = !fresh;
    await new Promise((done) => setTimeout(done, fresh ? PAUSE : 5 * PAUSE));
  }
  busy = false;
}

let later = 0;

/** Reads the page again in a while, for what may have changed on other pages of a long table. */
function refreshLater() {
  later ||= setTimeout(() => {
    later = 0;
    refresh();
  }, 5 * PAUSE);
}

/** The page as the server has it now, as a document whose scripts do not run. */
function load() {
  return new Promise((done) => {
    const request = new XMLHttpRequest();
    request.open("GET", location.href);
    request.responseType = "document";
    request.timeout = 20000;
    request.onloadend = () => {
      // What was shown is gone, and the answer says so.
      if (request.status === 404) location.reload();
      const found = request.status === 200 && request.responseXML;
      done(found && found.body?.dataset.shown ? found : null);
    };
    request.send();
  });
}

/** Takes over what differs in the page as it is now. `known` is what the stream had told when it was asked for. */
function adopt(fresh, known) {
  // The first machine, or one that became a node: another page.
  const parts = (from) => from.querySelectorAll("[data-sync]").length;
  if (parts(fresh) !== parts(document)) return location.reload();
  page.shown = fresh.body.dataset.shown;
  page.event = fresh.body.dataset.event;
  if (known && process(known) !== process(page.shown)) {
    // Another server of the site made the page. It may know less than the stream did, but not for long.
    page.shown = known;
    refreshLater();
  }
  for (const old of document.querySelectorAll("[data-sync]")) {
    const name = old.dataset.sync;
    const now = fresh.querySelector(`[data-sync="${CSS.escape(name)}"]`);
    if (now) sync(old, now);
  }
  prepare();
  tick();
}

/** Makes an element like another one, and leaves alone what is the same: focus, selections and ticks stay. */
function sync(old, now) {
  for (const { name } of [...old.attributes]) {
    if (!now.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  for (const { name, value } of now.attributes) {
    if (old.getAttribute(name) !== value && name !== "open") old.setAttribute(name, value);
  }
  if (old.dataset.own !== undefined) return;
  const kept = new Map();
  for (const child of old.children) if (child.dataset.id) kept.set(child.dataset.id, child);
  let place = old.firstChild;
  for (const wanted of [...now.childNodes]) {
    let match = place;
    if (wanted.dataset?.id) {
      match = kept.get(wanted.dataset.id);
      if (match && match !== place) old.insertBefore(match, place);
    }
    const same = match && match.nodeType === wanted.nodeType && match.nodeName === wanted.nodeName
      && (wanted.nodeType !== 1 || match.dataset?.id === wanted.dataset?.id);
    if (same) {
      if (wanted.nodeType === 1) sync(match, wanted);
      else if (match.data !== wanted.data) match.data = wanted.data;
      place = match.nextSibling;
    } else {
      old.insertBefore(document.importNode(wanted, true), place);
    }
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

// --- The stream -----------------------------------------------------------------------------------------------------

const channel = new BroadcastChannel("slipway");
channel.onmessage = (event) => (event.data.signedOut ? out() : take(event.data));

let source = null;
let release = null;

/** Follows the stream as soon as no other visible tab does, or in place of one that hears nothing. */
function follow(steal = false) {
  if (document.hidden || (release && !steal) || signedOut) return;
  // This tab's own place in the queue.
  if (steal) release?.();
  const turn = new AbortController();
  release = () => turn.abort();
  const lead = () => new Promise((done) => {
    release = done;
    page.leads = "";
    open();
  });
  const how = steal ? { steal } : { signal: turn.signal };
  navigator.locks.request("slipway-stream", how, lead).catch(() => {
    if (page.leads === undefined) return;
    // Another tab took it over, because this one heard nothing.
    leave();
    follow();
  });
}

function open() {
  close();
  source = new EventSource("/page/stream");
  source.onmessage = (event) => {
    const message = JSON.parse(event.data);
    channel.postMessage(message);
    take(message);
  };
  source.onerror = () => {
    if (source?.readyState !== EventSource.CLOSED) return;
    close();
    setTimeout(() => page.leads !== undefined && check(), 2000);
  };
}

/** Follows again, unless the session has ended. */
async function check() {
  try {
    const answer = await fetch("/page/stream", { redirect: "manual", headers: { accept: "application/json" }, method: "HEAD" });
    if (answer.status === 401) {
      channel.postMessage({ signedOut: true });
      return out();
    }
  } catch {
    // The server cannot be reached. The next try shows whether that has changed.
  }
  if (page.leads !== undefined) open();
}

/** Says that the session has ended. */
function out() {
  leave();
  signedOut = true;
  live.className = "warn";
  const link = document.createElement("a");
  link.href = `/login?next=${encodeURIComponent(location.pathname + location.search)}`;
  link.textContent = "sign in again";
  live.replaceChildren("▲ signed out: ", link);
  announce("You are signed out.");
}

function close() {
  source?.close();
  source = null;
}

/** Leaves the stream to another tab. */
function leave() {
  close();
  delete page.leads;
  release?.();
  release = null;
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) return leave();
  follow();
  // What happened meanwhile was not followed.
  if (page.follows !== "nothing") refresh();
});
addEventListener("pagehide", leave);
addEventListener("pageshow", (event) => event.persisted && follow());

// A connection that hangs is not noticed by the browser.
setInterval(() => {
  if (page.leads !== undefined && silence() > 2 * SILENT && source) open();
  else if (page.leads === undefined && silence() > 3 * SILENT) follow(true);
}, SILENT);

// --- Small things ---------------------------------------------------------------------------------------------------

/** Shows what only works with this script. */
function prepare() {
  for (const button of document.querySelectorAll("button.copy[hidden]")) button.hidden = false;
  const all = document.querySelector("#all");
  if (all) all.hidden = false;
  chosen();
}

/** Says how many rows are selected. */
function chosen() {
  const selected = document.querySelector("#selected");
  if (!selected) return;
  const boxes = [...document.querySelectorAll("tbody input[name=node]")];
  const everything = document.querySelector("#everything")?.checked;
  const ticked = everything ? Number(selected.dataset.of) : boxes.filter((box) => box.checked).length;
  setText(selected, ticked ? `${ticked} of ${selected.dataset.of} selected` : `${selected.dataset.of} shown`);
  const all = document.querySelector("#all");
  all.checked = ticked > 0 && ticked >= boxes.length;
  all.indeterminate = ticked > 0 && ticked < boxes.length;
  for (const box of [all, ...boxes]) box.disabled = everything === true;
  for (const button of document.querySelectorAll(".bulk button")) button.disabled = ticked === 0;
}

document.addEventListener("change", (event) => {
  if (event.target.id === "all") {
    for (const box of document.querySelectorAll("tbody input[name=node]")) box.checked = event.target.checked;
  }
  chosen();
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest?.("button.copy");
  if (!button) return;
  const text = button.parentElement.querySelector("code, textarea").textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(button.parentElement.querySelector("code"));
    button.textContent = "Selected";
  }
  setTimeout(() => (button.textContent = "Copy"), 2000);
});

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, select, textarea");
  if (event.key === "/" && !typing && document.querySelector("#q")) {
    event.preventDefault();
    document.querySelector("#q").focus();
  }
});

// A second click would be another request.
document.addEventListener("submit", ({ target }) => {
  if (target.method !== "post" || target.dataset.upload !== undefined) return;
  const buttons = [...target.querySelectorAll("button[type=submit]:not([disabled])")];
  const disable = (disabled) => buttons.forEach((button) => (button.disabled = disabled));
  setTimeout(disable, 0, true);
  setTimeout(disable, 5 * PAUSE, false);
});

// --- Uploads --------------------------------------------------------------------------------------------------------

/** Sends a form with a file, and says how far it is. */
function upload(event) {
  event.preventDefault();
  const form = event.target;
  const [line, bar, said] = ["[data-progress]", "progress", "[data-said]"].map((part) => form.querySelector(part));
  const mebibytes = (bytes) => `${(bytes / 1048576).toFixed(1)} MiB`;
  const button = form.querySelector("button");
  const warn = (leaving) => leaving.preventDefault();
  const request = new XMLHttpRequest();
  const began = Date.now();
  request.open("POST", form.action);
  request.responseType = "document";
  request.upload.onprogress = ({ loaded, total }) => {
    bar.value = Math.floor((loaded / total) * 100);
    const time = ((Date.now() - began) / loaded) * (total - loaded);
    const left = loaded < total ? `${age(time)} left` : "being stored";
    setText(said, `${mebibytes(loaded)} of ${mebibytes(total)}, ${left}`);
  };
  request.onloadend = () => {
    removeEventListener("beforeunload", warn);
    if (request.status === 200) return location.assign(request.responseURL);
    const problem = request.responseXML?.querySelector(".error")?.textContent
      ?? "the connection to the server was lost, so the image was not added: send it again";
    button.disabled = false;
    said.className = "error";
    setText(said, `■ ${problem}`);
    announce(problem);
  };
  line.hidden = false;
  said.className = "";
  button.disabled = true;
  addEventListener("beforeunload", warn);
  request.send(new FormData(form));
}

document.querySelectorAll("form[data-upload]").forEach((form) => form.addEventListener("submit", upload));

// --- Logs -----------------------------------------------------------------------------------------------------------

/** Shows a log as it grows. */
function log(element) {
  const filter = element.querySelector("input[type=search]");
  const text = element.querySelector("pre");
  let whole = text.textContent;
  const show = () => {
    const word = filter.value.toLowerCase();
    const lines = word ? whole.split("\n").filter((line) => line.toLowerCase().includes(word)).join("\n") : whole;
    const ends = text.scrollHeight - text.scrollTop - text.clientHeight < 40;
    setText(text, lines);
    if (ends) text.scrollTop = text.scrollHeight;
  };
  let seen = -1;
  let reading = false;
  const more = async () => {
    if (!element.open || document.hidden || signedOut || reading || seen === stirs) return;
    reading = true;
    const now = stirs;
    const answer = await fetch(element.dataset.log, { redirect: "manual" }).catch(() => null);
    const fresh = answer?.ok ? await answer.text().catch(() => null) : null;
    reading = false;
    if (fresh == null) return;
    seen = now;
    if (fresh !== whole) {
      whole = fresh;
      show();
    }
  };
  filter.addEventListener("input", show);
  element.addEventListener("toggle", more);
  setInterval(more, 2000);
  text.scrollTop = text.scrollHeight;
  more();
}

document.querySelectorAll("details[data-log]").forEach(log);
prepare();
setInterval(tick, 1000);
tick();
follow();
