// Runs a live page's script over elements that only keep what they are given. Standard input has what the server says at
// each asking: a status and a body, or null where it does not answer. Out comes what each element shows then, by its id, and
// what the page waits for: time, or a key that is given at once.

import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const pen = { scale() {}, beginPath() {}, roundRect() {}, fill() {} };

class Element {
  children = [];
  style = {};
  value = "";
  clientWidth = 600;
  classes = new Set();
  classList = { toggle: (name, on) => (on ? this.classes.add(name) : this.classes.delete(name)) };
  parentElement = { clientWidth: 600 };
  get textContent() {
    return this.children.map((child) => child.textContent ?? child).join("");
  }
  set textContent(text) {
    this.children = [text];
  }
  append(...children) {
    this.children.push(...children.map((child) => (child instanceof Element ? child : String(child))));
  }
  replaceChildren(...children) {
    this.children = [];
    this.append(...children);
  }
  setAttribute() {}
  addEventListener(kind, call, { once = false } = {}) {
    if (kind === "submit") submissions.push({ call, once });
  }
  getContext() {
    return pen;
  }
}

let submissions = [];

function submit() {
  const heard = submissions;
  submissions = submissions.filter(({ once }) => !once);
  heard.forEach(({ call }) => call({ preventDefault() {} }));
}

const elements = {};
const asked = JSON.parse(readFileSync(0, "utf8"));
const shown = [];
let again = null;

globalThis.document = {
  documentElement: new Element(),
  getElementById: (id) => (elements[id] ??= new Element()),
  createElement: () => new Element(),
  createElementNS: () => new Element(),
};
globalThis.window = { addEventListener() {} };
globalThis.matchMedia = () => new Element();
globalThis.getComputedStyle = () => ({ getPropertyValue: () => "" });
globalThis.sessionStorage = { getItem: () => null, setItem() {} };
globalThis.location = { origin: "http://pool" };
globalThis.setTimeout = (call) => (again = call);
globalThis.fetch = async () => {
  const [status, body] = asked[shown.length] ?? (() => { throw new TypeError("fetch failed"); })();
  return { status, ok: status === 200, json: async () => JSON.parse(body) };
};

const settled = () => new Promise((resolve) => setImmediate(resolve));

await import(pathToFileURL(process.argv[2]));
for (;;) {
  await settled();
  const texts = Object.entries(elements).map(([id, element]) => [id, element.textContent]);
  const waitsFor = again ? "time" : "key";
  shown.push({ ...Object.fromEntries(texts), isStale: elements.main.classes.has("stale"), waitsFor });
  if (shown.length === asked.length) break;
  const go = again ?? submit;
  again = null;
  go();
}
process.stdout.write(JSON.stringify(shown));
