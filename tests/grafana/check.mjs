// node check.mjs MODULES DASHBOARD.json…: judges dashboards by the types of @grafana/schema, with every panel's own options.
// MODULES is a directory whose node_modules holds @grafana/schema and typescript. Prints each fault, exits 1 if there is one.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const [modules, ...files] = process.argv.slice(2);
const ts = createRequire(join(modules, "package.json"))("typescript");
const types = join(modules, "node_modules/@grafana/schema/dist/types/raw/composable");
// The schema's name of each panel that we use; a new kind must be added here.
const KINDS = { stat: "stat", timeseries: "timeseries", table: "table", bargauge: "bargauge", heatmap: "heatmap", "state-timeline": "statetimeline" };

const text = (value) => JSON.stringify(value, null, 1);
let source = `import type { Dashboard, RowPanel, Panel, AnnotationQuery } from "@grafana/schema";
// A document holds an enum's value where the types name its member.
type Plain<T> = T extends string ? \`\${T}\` : T extends (infer U)[] ? Plain<U>[] : T extends object ? { [K in keyof T]: Plain<T[K]> } : T;
`;
for (const [kind, module] of Object.entries(KINDS)) {
  const path = join(types, module, "panelcfg/x/types.gen");
  const body = readFileSync(`${path}.d.ts`, "utf8");
  const has = (name) => body.includes(`interface ${name} `) || body.includes(`type ${name} `);
  const alias = kind.replace("-", "_");
  source += `import type * as ${alias} from ${text(path)};\n`;
  source += `type P_${alias} = Omit<Plain<Panel<${has("Options") ? `${alias}.Options` : "{}"}, ${has("FieldConfig") ? `${alias}.FieldConfig` : "{}"}>>, "options"> & { options: Plain<${alias}.Options> };\n`;
}
const faults = [];
files.forEach((file, i) => {
  const board = JSON.parse(readFileSync(file, "utf8"));
  const { panels, ...rest } = board;
  const { annotations, ...bare } = rest;
  source += `export const board${i}: Plain<Dashboard> = ${text(bare)};\n`;
  annotations.list.forEach((each, n) => (source += `export const mark${i}_${n}: Plain<AnnotationQuery> & { expr: string; titleFormat: string; textFormat: string; tagKeys: string; useValueForTime: boolean; step: string } = ${text(each)};\n`));
  panels.forEach((panel, n) => {
    if (panel.type === "row") source += `export const row${i}_${n}: Plain<RowPanel> = ${text(panel)};\n`;
    else if (KINDS[panel.type]) source += `export const panel${i}_${n}: P_${panel.type.replace("-", "_")} = ${text(panel)};\n`;
    else faults.push(`${file}: ${panel.title}: a panel of kind ${panel.type} cannot be judged`);
  });
});

const directory = mkdtempSync(join(modules, "check-"));
try {
  const main = join(directory, "check.ts");
  writeFileSync(main, source);
  const options = { noEmit: true, strict: true, skipLibCheck: true, types: [], target: ts.ScriptTarget.ES2022, module: ts.ModuleKind.ES2022,
    moduleResolution: ts.ModuleResolutionKind.Bundler };
  for (const fault of ts.getPreEmitDiagnostics(ts.createProgram([main], options))) {
    const at = fault.file && fault.start !== undefined ? fault.file.getLineAndCharacterOfPosition(fault.start).line : 0;
    const lines = fault.file ? fault.file.text.split("\n").slice(0, at + 1) : [];
    const which = lines.findLast((line) => line.startsWith("export const")) ?? "";
    faults.push(`${which} line ${at}: ${lines.at(-1)?.trim() ?? ""}: ${ts.flattenDiagnosticMessageText(fault.messageText, "\n  ")}`);
  }
} finally {
  rmSync(directory, { recursive: true, force: true });
}
faults.forEach((fault) => console.error(fault));
process.exit(faults.length ? 1 : 0);
