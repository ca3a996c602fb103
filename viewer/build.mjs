// Writes viewer.js and viewer.css into the package, or into the folder that is given: `node build.mjs FOLDER`.
import { build } from "esbuild";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const folder = process.argv[2] ?? join(here, "../src/headway/inspection/report");

const { outputFiles, metafile } = await build({
  absWorkingDir: here, // the bundle is the same wherever this is run
  entryPoints: { viewer: "src/main.tsx" },
  outdir: folder,
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  charset: "utf8",
  jsx: "automatic",
  jsxImportSource: "preact",
  metafile: true,
  write: false,
});

/** The licences of the packages that are in the bundle, which they want to be with it. */
function licences() {
  const names = Object.keys(metafile.inputs).map((path) => /node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(path)?.[1]);
  return [...new Set(names)].filter(Boolean).sort().map((name) => {
    const { version } = JSON.parse(readFileSync(join(here, "node_modules", name, "package.json"), "utf8"));
    const licence = readFileSync(join(here, "node_modules", name, "LICENSE"), "utf8");
    return `/*! ${name} ${version}\n\n${licence.trim()}\n*/\n`;
  });
}

mkdirSync(folder, { recursive: true });
for (const { path, text } of outputFiles) {
  writeFileSync(join(folder, basename(path)), path.endsWith(".js") ? licences().join("") + text : text);
}
