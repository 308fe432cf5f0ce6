// Looks at pages in Chromium as a person would, and prints one JSON document of what was found.
//
//   node look.mjs DIR STEP...
//
// Each STEP is JSON: {"name","url"} looks at a page (light, dark, and 375 px wide; pictures go to DIR);
// {"name","url","do":[{"fill":{label:text}},{"click":text}]} goes on from there without JavaScript, and tells where it ends.
// HANGAR_MEDIC_TEST_NPM is the directory with node_modules.
import { createRequire } from "node:module";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { join } from "node:path";
import { tmpdir } from "node:os";

const require = createRequire(join(process.env.HANGAR_MEDIC_TEST_NPM, "package.json"));
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

const [dir, ...steps] = process.argv.slice(2);
const profile = mkdtempSync(join(tmpdir(), "hangar-medic-chromium-"));
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"],
  env: { ...process.env, HOME: profile },
});

async function look({ name, url }) {
  const found = { name, problems: [], serious: [], titles: [] };
  for (const [way, options] of [
    ["light", { colorScheme: "light", viewport: { width: 1280, height: 900 } }],
    ["dark", { colorScheme: "dark", viewport: { width: 1280, height: 900 } }],
    ["phone", { colorScheme: "light", viewport: { width: 375, height: 800 } }],
  ]) {
    // The pages need no script; axe does, so the page's own policy is bypassed for it.
    const context = await browser.newContext({ ...options, bypassCSP: true });
    const page = await context.newPage();
    const said = [];
    page.on("console", (m) => m.type() === "error" && said.push(`${way}: ${m.text()}`));
    page.on("pageerror", (e) => found.problems.push(`${way}: ${e}`));
    const answer = await page.goto(url, { waitUntil: "load" });
    // That the page itself is missing is what such a step looks at.
    found.problems.push(...(answer.status() === 404 ? said.filter((s) => !s.includes("404")) : said));
    if (answer.status() >= 500) found.problems.push(`${way}: HTTP ${answer.status()}`);
    await page.screenshot({ path: join(dir, `${name}-${way}.png`), fullPage: true });
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
    if (wide > 0) found.problems.push(`${way}: ${wide} px wider than the window`);
    found.titles.push(await page.title());
    await page.evaluate(axe);
    const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
    for (const v of violations) {
      const at = `${way}: ${v.id} (${v.impact}): ${v.help}: ${v.nodes.slice(0, 3).map((n) => n.target).join(" | ")}`;
      (["serious", "critical"].includes(v.impact) ? found.serious : found.problems).push(at);
    }
    // Every link and field can be reached by the keyboard, in the order of the page.
    const links = await page.evaluate(() => document.querySelectorAll("a[href], input:not([type=hidden]), textarea, button").length);
    const reached = new Set();
    for (let n = 0; n < Math.min(links, 40); n += 1) {
      await page.keyboard.press("Tab");
      reached.add(await page.evaluate(() => [...document.querySelectorAll("a[href], input, textarea, button")].indexOf(document.activeElement)));
    }
    if (reached.size < Math.min(links, 40)) found.problems.push(`${way}: the keyboard reaches ${reached.size} of ${links}`);
    await context.close();
  }
  return found;
}

async function act({ name, url, do: todo }) {
  const context = await browser.newContext({ javaScriptEnabled: false, viewport: { width: 1280, height: 900 } });
  const page = await context.newPage();
  await page.goto(url, { waitUntil: "load" });
  for (const { fill, click } of todo) {
    for (const [label, text] of Object.entries(fill ?? {})) await page.getByLabel(label, { exact: false }).fill(text);
    if (click) {
      await page.getByRole("link", { name: click }).or(page.getByRole("button", { name: click })).first().click();
      await page.waitForLoadState("load");
    }
  }
  await page.screenshot({ path: join(dir, `${name}.png`), fullPage: true });
  const found = { name, url: page.url(), title: await page.title(), text: await page.innerText("main") };
  const cookies = await context.cookies();
  await context.close();
  return { ...found, cookies: cookies.length };
}

let code = 0;
try {
  const found = [];
  for (const step of steps.map((s) => JSON.parse(s))) found.push(await (step.do ? act(step) : look(step)));
  console.log(JSON.stringify(found));
} catch (error) {
  console.error(error);
  code = 1;
} finally {
  await browser.close();
  rmSync(profile, { recursive: true, force: true });
}
process.exit(code);
